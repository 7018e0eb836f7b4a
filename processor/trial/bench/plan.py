"""The options of a benchmark, its expected duration, and the machine: figures mean little without it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from processor.kafka.admin.admin import librdkafka_version
from processor.runtime.worker import os_process

if TYPE_CHECKING:
    from collections.abc import Mapping


Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]

GUARANTEES: Final[tuple[Guarantee, ...]] = ("exactly_once", "at_least_once")

# For two processors shared with the broker; a guess until the first round was measured.
_BROKER_S: Final = 8.0
_LOADED_PER_S: Final = 80_000
_PASSED_PER_S: Final = 200_000
_MERGED_PER_S: Final = 70_000
_START_S: Final = 4.0
"""Time for a program to start, join its group and end."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of a benchmark."""

    records: int
    """Input records of each round."""
    keys: int
    """The maximum number of keys."""
    rounds: int
    """Number of times everything is measured."""
    rate: float
    """Records per second at which latency is measured."""
    latency_records: int
    """Records whose latency is measured under each guarantee; 0 to skip latency."""
    kafka: Mapping[str, str] | None = None
    """The properties of an existing Kafka; None: an embedded one."""


def round_s(options: BenchOptions) -> float:
    """The expected duration of a round."""
    each_s = 1 / _LOADED_PER_S + 1 / _PASSED_PER_S + 1 / _MERGED_PER_S
    return 2 * _START_S + options.records * each_s


def latency_s(options: BenchOptions) -> float:
    """The expected duration of measuring latency."""
    if not options.latency_records:
        return 0.0
    return len(GUARANTEES) * (_START_S + 1.2 * options.latency_records / options.rate)


def whole_s(options: BenchOptions) -> float:
    """The expected duration of everything."""
    own_s = _BROKER_S if options.kafka is None else 0.0
    return own_s + options.rounds * round_s(options) + latency_s(options)


def about(seconds: float) -> str:
    """A duration in words: `20 seconds`, `a minute and a half`, `3 minutes`."""
    if seconds < 55:
        return f"{max(10, round(seconds / 10) * 10)} seconds"
    if seconds < 105:
        return "a minute" if seconds < 75 else "a minute and a half"
    return f"{round(seconds / 60)} minutes"


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
        allocator=os_process.of_programs(),
    )
