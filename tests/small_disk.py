"""A file system of a few megabytes, mounted by root, that tests can fill, enlarge and remove."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class SmallDisk:
    """A file system in memory, mounted on a directory."""

    def __init__(self, path: Path, size: int) -> None:
        """Mount the file system; skip the test if that is not allowed."""
        self.path = path
        path.mkdir()
        done = _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path))
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    def leave_only(self, size: int) -> None:
        """Fill the file system until this many bytes are free, rounded to a page."""
        status = os.statvfs(self.path)
        fill = max(0, status.f_bavail * status.f_frsize - size)
        with (self.path / "filler").open("wb") as file:
            file.write(bytes(fill))

    def grow(self, size: int) -> None:
        """Enlarge the file system."""
        self._remount(f"size={size}")

    def forbid_writing(self) -> None:
        """Make the file system read-only."""
        self._remount("ro")

    def _remount(self, option: str) -> None:
        done = _run("mount", "-o", f"remount,{option}", str(self.path))
        assert done.returncode == 0, done.stderr

    def unmount(self) -> None:
        """Unmount the file system at once, even if a process uses it."""
        done = _run("umount", "--lazy", str(self.path))
        assert done.returncode == 0, done.stderr


@contextmanager
def small_disks(directory: Path) -> Iterator[Callable[[int], SmallDisk]]:
    """Yield a function that makes disks of a size; all of them are unmounted at the end."""
    disks: list[SmallDisk] = []

    def make(size: int) -> SmallDisk:
        disks.append(SmallDisk(directory / f"disk-{len(disks)}", size))
        return disks[-1]

    try:
        yield make
    finally:
        for disk in disks:
            disk.unmount()


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
