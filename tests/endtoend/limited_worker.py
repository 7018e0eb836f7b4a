"""Runs a worker in a control group with limited memory: `limited_worker NAME BYTES worker …`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from processor.cli.main import main

GROUPS = Path("/sys/fs/cgroup/memory")
"""Of the first version of control groups; tests that need them skip where they are not."""


def group(name: str) -> Path:
    """Return the directory of a control group."""
    return GROUPS / f"sowstream-{name}"


if __name__ == "__main__":
    place = group(sys.argv[1])
    place.mkdir(exist_ok=True)
    (place / "memory.limit_in_bytes").write_text(sys.argv[2])
    (place / "cgroup.procs").write_text(str(os.getpid()))
    del sys.argv[1:3]
    main()
