"""Checks the state directory: may we write to it, is there room, who uses it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from processor.tools.doctor.finding import Finding

_GIB = 1 << 30
_FREE_FAIL_BYTES = _GIB // 8
_FREE_WARN_BYTES = 2 * _GIB


def check_state(directory: Path) -> list[Finding]:
    """Whether workers can keep their state here. A directory that is missing is not made."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    found = [_writable(directory, place)]
    if found[0].level == "ok":
        found.append(_room(place))
    if holders := _holders(directory):
        pids = ", ".join(str(pid) for pid in holders)
        found.append(Finding("ok", "state in use", f"by worker processes {pids}"))
    return found


def _writable(directory: Path, place: Path) -> Finding:
    if not place.is_dir():
        return Finding("fail", "state_dir", f"{place} is not a directory", "name another one: --state-dir")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Finding(
            "fail", "state_dir", f"{place}: {error.strerror}", "name one this user may write to: --state-dir"
        )
    return Finding("ok", "state_dir", f"{directory}" + ("" if place == directory.absolute() else ", made when needed"))


def _room(place: Path) -> Finding:
    free_bytes = shutil.disk_usage(place).free
    found = f"{free_bytes / _GIB:.1f} GiB free"
    to_do = "make room, or name a directory on another disk: --state-dir"
    if free_bytes < _FREE_FAIL_BYTES:
        return Finding("fail", "state disk", found, to_do)
    if free_bytes < _FREE_WARN_BYTES:
        return Finding("warn", "state disk", found, to_do)
    return Finding("ok", "state disk", found)


def _holders(directory: Path) -> list[int]:
    """The worker processes that live here: each has written its number into its slot file."""
    pids = []
    for slot in sorted((directory / "slots").glob("*")):
        text = slot.read_text(errors="replace")
        if text.isdecimal() and _is_alive(int(text)):
            pids.append(int(text))
    return pids


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
