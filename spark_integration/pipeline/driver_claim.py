"""The claim of a process on a job: a file in the job's checkpoint that names the process, and shows that it lives.

    <checkpoint>/sowstream-driver.json   process, host and state; `beat` grows every few seconds while the process lives

A second process is refused as long as the first one lives, also while that has nothing to do. A claim is free when its
process has given it back, when that process is seen to be gone on this machine, or when `beat` has not grown for
`LEASE_S`: clocks of hosts are never compared. The taker of a claim writes its own token, and looks again after a while.

Why a file, and not a consumer group as for merges: it needs no right on Kafka that a pipeline did not need before, and
it lies where the damage would be done. Its limits: a file system that shows a written file later than `_settle_s`, or a
process that stands still for longer than the lease and goes on, lets two processes run for a moment. The second one is
found by the next beat of the first, which then stops the job; and by Spark, which plans each micro-batch once.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import ConfigurationError
from spark_integration.foundation.small_files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_integration.foundation.small_files import SmallFiles

log = structlog.stdlib.get_logger("sowstream.spark")

FILE: Final = "sowstream-driver.json"
"""The name of the file, in the directory of the checkpoint."""
LEASE_S: Final = 40.0
"""A claim whose process has given no sign of life for as long is free."""
BEAT_S: Final = 5.0
"""Time between two signs of life."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has, or had, a claim."""

    token: str
    """A random text of this run."""
    host: str
    process: int
    """The id of the process."""
    since: float
    """The time of its start with this job, in seconds since the epoch, by its clock."""
    machine: str = ""
    """The running system and the namespace in which the id of the process counts; empty: unknown."""
    started: str = ""
    """The start of the process, as the system counts it; ids of processes are used again."""
    beat: int = 0
    """Grows with each sign of life."""
    at: float = 0.0
    """The time of the last sign of life."""
    state: str = ""
    """The state of the job, one of `STATES`."""
    why: str = ""
    """The reason of the state, for `waiting`, `retrying` and `failed`."""
    is_released: bool = False
    """True once the process has given the claim back."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"process {self.process} on {self.host}, since {since}"

    def refusal(self, others: Sequence[str] = ()) -> str:
        """The reason for which another process may not run the job, and what to do.

        Args:
            others: more jobs that the same process runs.
        """
        jobs = " and ".join(["this job", *([", ".join(others)] if others else [])])
        return f"another driver runs {jobs}: {self}; stop that one first, or give this pipeline checkpoints of its own"

    @property
    def is_alive(self) -> bool | None:
        """True if the process lives; None where that cannot be seen from here, as on another machine."""
        if not self.machine or self.machine != _machine():
            return None
        return _started(self.process) == self.started


def holder_of(files: SmallFiles) -> Holder | None:
    """The last holder of the claim on a checkpoint; None if there was none.

    Raises:
        ConfigurationError: the file is damaged.
    """
    text = files.read(FILE)
    if text is None:
        return None
    try:
        return Holder(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{FILE} in the checkpoint is damaged: {error}; remove it once no other process runs this job"
        ) from None


class DriverClaim:
    """The claim of this process on one job."""

    def __init__(self, job: str, files: SmallFiles, *, lease_s: float = LEASE_S) -> None:
        """Set up; nothing is read or written.

        Args:
            job: the name of the job, for messages.
            files: the files in the directory of its checkpoint.
            lease_s: see `LEASE_S`.
        """
        self._job, self._files, self._lease_s = job, files, lease_s
        self._settle_s = 0.25 if isinstance(files, LocalFiles) else 2.0
        self._lock = threading.Lock()
        self._own = Holder(
            uuid.uuid4().hex, socket.gethostname(), os.getpid(), time.time(), _machine(), _started(os.getpid())
        )
        self._watched: tuple[Holder, float] | None = None
        self._written_s = 0.0
        self._is_held = False
        self.lost = ""
        """Why the claim is lost; empty while it is held."""

    def take(self) -> Holder | None:
        """Take the claim if it is free.

        Returns:
            None: it is ours, once `settle` has looked again. Else its holder, of which is not known whether it lives:
            call this method again, within the lease a few times.

        Raises:
            ConfigurationError: another process runs the job.
        """
        holder = holder_of(self._files)
        if holder is not None and holder.token != self._own.token and not holder.is_released:
            alive = holder.is_alive
            now_s = time.monotonic()
            if self._watched is None or self._watched[0].token != holder.token:
                self._watched = holder, now_s
            before, since_s = self._watched
            if alive or (alive is None and holder.beat != before.beat):
                raise ConfigurationError(f"{self._job}: {holder.refusal()}")
            if alive is None and now_s - since_s < self._lease_s:
                return holder
            log.warning("the claim of a dead driver is taken over", job=self._job, driver=str(holder))
        self._watched, self.lost = None, ""
        self._write()
        return None

    def settle(self) -> None:
        """Make sure that no other process has taken the claim at the same time.

        Raises:
            ConfigurationError: one has.
        """
        if self._is_held:
            return
        time.sleep(max(0.0, self._written_s + self._settle_s - time.monotonic()))
        holder = holder_of(self._files)
        if holder is None or holder.token != self._own.token:
            raise ConfigurationError(f"{self._job}: another process has just taken this job: {holder}")
        self._is_held = True

    def note(self, state: str, why: str = "") -> None:
        """Record the state of the job, which `status` shows."""
        if (state, why) != (self._own.state, self._own.why):
            self._own = replace(self._own, state=state, why=why)
            if self._is_held:
                self.renew()

    def renew(self) -> None:
        """Give a sign of life; `lost` is set if another process has the claim, or the file cannot be written."""
        if not self._is_held or self.lost:
            return
        try:
            holder = holder_of(self._files)
            if holder is None or holder.token != self._own.token:
                self._give_up(f"another process has taken this job: {holder}")
                return
            self._write()
        except Exception as error:  # noqa: BLE001 - of Java or Python: the file system may be back in a moment
            if time.monotonic() - self._written_s > self._lease_s:
                self._give_up(
                    f"{FILE} in the checkpoint cannot be written, so that another process may run it: {error}"
                )

    def release(self) -> None:
        """Give the claim back, with the last state of the job."""
        if self._is_held and not self.lost:
            self._own = replace(self._own, is_released=True)
            self.renew()
        self._is_held = False

    def _give_up(self, why: str) -> None:
        self.lost, self._is_held = why, False

    def _write(self) -> None:
        with self._lock:
            self._own = replace(self._own, beat=self._own.beat + 1, at=time.time())
            self._files.write(FILE, json.dumps(asdict(self._own), indent=1))
            self._written_s = time.monotonic()


@contextmanager
def kept_alive(claims: Sequence[DriverClaim], beat_s: float = BEAT_S) -> Iterator[None]:
    """Give signs of life for claims on a thread of its own while the block runs."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(beat_s):
            for claim in claims:
                claim.renew()

    thread = threading.Thread(target=run, name="driver-claims", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _machine() -> str:
    """The running system and its namespace of process ids; empty where they are not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - a name, no path
    except OSError:
        return ""


def _started(process: int) -> str:
    """The start of a process of this machine; empty if it has ended."""
    try:
        # The name of the program, in parentheses, may have blanks.
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
