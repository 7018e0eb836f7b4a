"""A wall clock that differs from the machine's, for the processes that are started with it."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("skewed_clock.c")


def build(directory: Path) -> Path:
    """Compile the library that shifts the clock of a process; returns its file."""
    library = directory / "skewed_clock.so"
    subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


class SkewedClock:
    """The clock of some processes: right at first, and any number of seconds wrong from `set` on."""

    def __init__(self, library: Path, file: Path) -> None:
        """Create the clock.

        Args:
            library: what `build` made.
            file: the file for the difference; its directory exists.
        """
        self._file = file
        self.skew_s = 0.0
        """Difference to the machine's clock."""
        self.set(0.0)
        preload = f"{library} {os.environ.get('LD_PRELOAD', '')}".strip()
        self.env = {"LD_PRELOAD": preload, "SKEWED_CLOCK": str(file)}
        """What the environment of a process must have."""

    def set(self, skew_s: float) -> None:
        """Let the clock jump, so that it differs by this."""
        self.skew_s = skew_s
        # In place, as the processes have mapped the file: not with a new file of the same name.
        with self._file.open("r+b" if self._file.exists() else "xb") as file:
            file.write(struct.pack("=q", round(skew_s * 1000)))
