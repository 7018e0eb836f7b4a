"""Says what figures were measured on: they mean little without it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import NamedTuple

from processor.kafka.admin.admin import librdkafka_version
from processor.runtime.process import allocator

_BUSY: float = 0.5
"""Programs for each processor, over the last minute, from which on they take from what is measured."""


class Machine(NamedTuple):
    """Where and when."""

    cores: int
    """Processors that we may use."""
    load: float
    """Programs that wanted one, over the minute before the start."""
    system: str
    """Operating system and processor family."""
    python: str
    """Python's version."""
    librdkafka: str
    """The client library's version."""
    sowstream: str
    """Our own."""
    allocator: str
    """What gives memory to the programs that are measured: jemalloc, as in the image, or libc where there is none."""

    @property
    def is_busy(self) -> bool:
        """Whether others' work will be seen in the figures."""
        return self.load > _BUSY * self.cores


def this_machine() -> Machine:
    """The machine as it is now."""
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=round(os.getloadavg()[0], 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        librdkafka=librdkafka_version(),
        sowstream=version("sowstream"),
        allocator=allocator.of_programs(),
    )
