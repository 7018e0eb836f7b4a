"""Limits processes to a part of a core each, so that the broker, which shares the machine, is not the bottleneck."""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PERIOD_US = 20_000  # Short against a transaction's 200 ms: a limited process is slow, and not stopped for long.
_GONE_S = 5.0


class _Groups(NamedTuple):
    """The directory of the system's control groups."""

    root: Path
    is_unified: bool
    """Whether it is version 2, with one file for quota and period."""


def can_hold() -> bool:
    """Return whether this user may create control groups for processors; root may, where they are mounted."""
    try:
        with _group(_mounted_groups(), 1.0):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def held(pids: Iterable[int], cores: float) -> Iterator[None]:
    """Limit each process to a part of a core, with the processes it starts, as long as the block lasts.

    Raises:
        OSError: the system does not allow it.
    """
    groups = _mounted_groups()
    with contextlib.ExitStack() as cleanup:
        for pid in pids:
            directory = cleanup.enter_context(_group(groups, cores))
            (directory / "cgroup.procs").write_text(str(pid))
        yield


def _mounted_groups() -> _Groups:
    """The control groups of version 1, if they are mounted, or of version 2."""
    for root, is_unified in ((Path("/sys/fs/cgroup/cpu"), False), (Path("/sys/fs/cgroup"), True)):
        if (root / "cgroup.procs").exists():
            return _Groups(root, is_unified)
    raise FileNotFoundError("no control groups for processors are mounted")


@contextlib.contextmanager
def _group(groups: _Groups, cores: float) -> Iterator[Path]:
    """Create a group with a quota; at the end its processes return to the group of all processes."""
    directory = groups.root / f"sowstream-bench-{uuid.uuid4().hex[:8]}"
    directory.mkdir()
    try:
        quota_us = round(_PERIOD_US * cores)
        if groups.is_unified:
            (directory / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        else:
            (directory / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (directory / "cpu.cfs_quota_us").write_text(str(quota_us))
        yield directory
    finally:
        for pid in (directory / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # The process has ended in the meantime.
                (groups.root / "cgroup.procs").write_text(pid)
        _remove(directory)


def _remove(directory: Path) -> None:
    """Remove a group; the group of a process that has just ended is busy for a moment."""
    ends_s = time.monotonic() + _GONE_S
    while True:
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.01)
        else:
            return
