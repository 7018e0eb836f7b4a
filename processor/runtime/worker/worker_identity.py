"""The identity of a worker process on its machine: a small unique number, which is the same after a restart."""

from __future__ import annotations

import os
import re
import socket
import threading
import uuid
import zlib
from collections import defaultdict
from typing import IO, TYPE_CHECKING, Final, NamedTuple

import structlog

from processor.errors import Stop
from processor.store.file_lock import lock_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.groups import ConsumerGroup


_SLOTS_MAX = 1024
_IDENTITY = re.compile(rb"([0-9a-f]{32})\n")
_IDENTITY_BYTES_MAX = 64


class ProcessSlot:
    """The number and name of a worker process, reserved by a file lock until the process ends.

    Transactional ids contain the name. A worker that was killed gets the same slot and so the same id after a restart,
    and Kafka ends its open transaction at once, not after `transaction.timeout.ms`.

    A UUID in the file is part of the name. So two installations with equal host and directory names, such as pods of
    one release name in two namespaces or clusters, never fence each other. The UUID lasts as long as the directory: a
    worker that was killed and has lost its directory gets another name, and its partitions wait until the open
    transaction times out (`transaction_timeout_s`).
    """

    def __init__(self, state_dir: Path) -> None:
        """Take the first free slot of a state directory.

        Raises:
            Stop: the directory is not writable, or has no free slot.
        """
        directory = state_dir / "slots"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file, self.number = _take(directory)
            identity = _identity(self._file)
        except OSError as error:
            raise Stop(f"state_dir {state_dir}: {error.strerror}; choose a directory this user may write to") from error
        host = re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())[:60]
        # Each directory has a slot 0: two of one host must not fence each other's producers.
        place = zlib.crc32(bytes(state_dir.resolve()))
        self.name = f"{host}-{place:08x}-{self.number}-{identity}"
        """Host name, checksum of the directory, number and UUID: `worker-2-5f3a01c7-0-3f2a…`, with 32 digits."""

    def release(self) -> None:
        """Release the slot for another process."""
        self._file.close()


def _identity(file: IO[bytes]) -> str:
    """Read or create the UUID of a slot, and write the id of this process behind it.

    The UUID is the first line and never overwritten: a crash while the process id is written does not damage it.
    """
    file.seek(0)
    stored = _IDENTITY.match(file.read(_IDENTITY_BYTES_MAX))
    identity = uuid.uuid4().hex if stored is None else stored[1].decode()
    if stored is None:
        file.truncate(0)
        file.write(f"{identity}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    file.truncate(len(identity) + 1)
    file.write(f"{os.getpid()}\n".encode())
    file.flush()
    return identity


def _take(directory: Path) -> tuple[IO[bytes], int]:
    for number in range(_SLOTS_MAX):
        file = (directory / str(number)).open("a+b")
        try:
            lock_file(file)
        except BlockingIOError:
            file.close()
            continue
        return file, number
    raise OSError(0, f"all {_SLOTS_MAX} slots are taken")


log = structlog.stdlib.get_logger("sowstream.group")

INTERVAL_S: Final = 60.0
"""Least time between two looks."""
_ASK_TIMEOUT_S: Final = 10.0
_NAME: Final = re.compile(r"(.+-[0-9a-f]{8}-[0-9]+)-([0-9a-f]{32})")
"""The name of a slot: its place, and its UUID."""


class WorkerMember(NamedTuple):
    """A worker in a group."""

    client_id: str
    """The name of its slot, unless the settings override it."""
    host: str
    """Its address."""


def members_of(group: ConsumerGroup) -> list[WorkerMember]:
    """List the members of a group, sorted."""
    return sorted(WorkerMember(one.client_id, one.host) for one in group.members)


def rivals(group_members: Iterable[WorkerMember]) -> dict[str, list[WorkerMember]]:
    """Group the members that have one place and several UUIDs, by place."""
    by_place: defaultdict[str, dict[str, WorkerMember]] = defaultdict(dict)
    for member in group_members:
        if (name := _NAME.fullmatch(member.client_id)) is not None:
            by_place[name[1]][name[2]] = member
    return {place: list(of_place.values()) for place, of_place in by_place.items() if len(of_place) > 1}


def ask_members(admin: Admin, group: str, topic: str, timeout_s: float = _ASK_TIMEOUT_S) -> list[WorkerMember]:
    """Ask for the members of a group.

    Raises:
        Stop: Kafka refuses, or does not answer.
    """
    return members_of(admin.ask_group(group, topic, timeout_s).answer())


class RivalWatch:
    """Checks the members of a process' groups."""

    def __init__(self, admin: Admin, groups: Sequence[tuple[str, str]], *, session_timeout_s: float) -> None:
        """Create a watch; it sends no request before `run`.

        Args:
            admin: the connection.
            groups: each consumer group with its input topic.
            session_timeout_s: how long a group waits for a dead member.
        """
        self._admin = admin
        self._groups = groups
        self.pause_s = max(INTERVAL_S, 1.5 * session_timeout_s)
        """Seconds between two looks: within this time a dead member leaves the group."""
        self._suspects: dict[tuple[str, str], list[WorkerMember]] = {}
        self._reported: set[tuple[str, str]] = set()

    def run(self) -> float:
        """Look at the members of all groups; returns the seconds until the next look."""
        asked = {group: self._admin.ask_group(group, topic, _ASK_TIMEOUT_S) for group, topic in self._groups}
        for group, question in asked.items():
            try:
                self.look(group, members_of(question.answer()))
            except Stop as error:
                log.debug("group not looked at", group=group, why=str(error))
        return self.pause_s

    def look(self, group: str, group_members: Iterable[WorkerMember]) -> None:
        """Compare the members with those of the look before; a pair that was in both is logged, once."""
        now = {(group, place): pair for place, pair in rivals(group_members).items()}
        for key, pair in now.items():
            if self._suspects.get(key) == pair and key not in self._reported:
                self._reported.add(key)
                log.warning(
                    "two installations share a consumer group: each gets a part of the partitions. Give one of them "
                    "another application_id, and topics of its own, or stop it",
                    group=group,
                    members=[f"{member.client_id} at {member.host}" for member in pair],
                )
        self._suspects = {key: pair for key, pair in self._suspects.items() if key[0] != group} | now


def log_fencing_member(admin: Admin, group: str, topic: str, own: str) -> None:
    """Log the other members of a fenced worker's group, on a thread of its own, if Kafka answers."""

    def look() -> None:
        try:
            group_members = ask_members(admin, group, topic)
        except Stop as error:
            log.warning("fenced; who did it is not known", group=group, why=str(error))
            return
        others = [f"{member.client_id} at {member.host}" for member in group_members if member.client_id != own]
        same = [f"{member.client_id} at {member.host}" for member in group_members if member.client_id == own]
        if len(same) > 1:
            log.error("fenced: another process has the same identity, as of a copied state_dir", members=same)
        else:
            log.warning("fenced: a process with the same transactional id has started", group=group, others=others)

    threading.Thread(target=look, name="who fenced", daemon=True).start()
