"""Describes the machine of a measurement: figures mean little without it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import NamedTuple

from processor.kafka.admin.admin import librdkafka_version
from processor.runtime.process import allocator

_BUSY: float = 0.5
"""Running programs per processor, over the last minute, from which on they distort the figures."""


class Machine(NamedTuple):
    """The machine and the versions of the software."""

    cores: int
    """Processors available to this process."""
    load: float
    """Programs ready to run, averaged over the minute before the start."""
    system: str
    """Operating system and processor family."""
    python: str
    """Python's version."""
    librdkafka: str
    """The client library's version."""
    sowstream: str
    """Sowstream's version."""
    allocator: str
    """The memory allocator of the measured programs: jemalloc, as in the image, or libc if it is not installed."""

    @property
    def is_busy(self) -> bool:
        """True if other programs' work distorts the figures."""
        return self.load > _BUSY * self.cores


def this_machine() -> Machine:
    """The machine in its current state."""
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=round(os.getloadavg()[0], 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        librdkafka=librdkafka_version(),
        sowstream=version("sowstream"),
        allocator=allocator.of_programs(),
    )
