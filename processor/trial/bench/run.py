"""The sequence of a benchmark: a broker, rounds of both programs over the same input, latency, and cleaning up."""

from __future__ import annotations

import contextlib
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from processor.kafka.admin.admin import Admin
from processor.runtime.worker.os_process import LIBC, interruptible
from processor.trial.bench.plan import GUARANTEES, about, latency_s, this_machine, whole_s
from processor.trial.bench.programs import delays_s, run_ceiling, run_worker
from processor.trial.bench.result import CEILING, WORKER, Result
from processor.trial.bench.setup import load, topics, write_setup
from processor.trial.broker import EmbeddedBroker
from processor.trial.broker.jars import class_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.trial.bench.plan import BenchOptions, Guarantee, Machine
    from processor.trial.bench.result import Figure

# A topic that lives for a minute may have one replica, on any cluster.
_TOPIC: Final = {"allow_one_replica": True}


_FEW: Final = 100_000
"""Records that a worker merges within about a second: with fewer, its start distorts the rate."""


class BenchProgress(Protocol):
    """Receives the progress of a benchmark."""

    def say(self, line: str) -> None:
        """Report an event."""

    def show(self, doing: str, done: int = 0, total: int | None = None) -> None:
        """Report the current activity, and its progress; None: the total is unknown."""


def run_bench(options: BenchOptions, progress: BenchProgress) -> Result:
    """Measure everything.

    Raises:
        Stop: a measurement failed; started programs are ended.
        KeyboardInterrupt: a signal, with its name; started programs are ended.
    """
    with interruptible(), contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="sowstream-bench-", ignore_cleanup_errors=True)
        directory = Path(stack.enter_context(temporary))
        machine = this_machine()
        _announce(options, machine, progress)
        bench = _Bench(options, _kafka(options, progress, stack), directory, progress)
        bench.measure_throughput()
        if options.latency_records:
            bench.measure_latency()
        return Result(options, machine, bench.figures, bench.delays_s)


def _announce(options: BenchOptions, machine: Machine, progress: BenchProgress) -> None:
    """Print the plan before anything takes time."""
    progress.say(
        f"Measures one worker, exactly once, beside the pass-through ceiling: {_rounds(options)} of "
        f"{options.records:,} records over {options.keys:,} keys, both over the same input, in turn."
    )
    if options.latency_records:
        progress.say(
            f"Then how long a record takes to be seen, {options.latency_records:,} of them, {options.rate:,.0f} a "
            "second, exactly once and at least once."
        )
    if options.records < _FEW:
        progress.say(f"So few records are over before the programs are up to speed; from {_FEW:,} on it is a measure.")
    if machine.allocator == LIBC:
        progress.say(
            "Memory comes from libc. With jemalloc, which the image has, a worker is about a tenth faster: "
            "install it (Debian: libjemalloc2), and it is used here."
        )
    if machine.is_busy:
        progress.say(
            f"This machine does other things, too: {machine.load:.1f} programs at once in the last minute, on "
            f"{machine.cores} processors. What is measured now is too low; the ratio suffers less."
        )
    progress.say(f"That takes about {about(whole_s(options))}. Ctrl-C ends it; nothing stays behind.")


def _rounds(options: BenchOptions) -> str:
    return "one round" if options.rounds == 1 else f"{options.rounds} rounds"


def _kafka(options: BenchOptions, progress: BenchProgress, stack: contextlib.ExitStack) -> Mapping[str, str]:
    """The broker to measure on."""
    if options.kafka is not None:
        Admin(options.kafka).cluster()  # Raises if the broker does not answer.
        return options.kafka
    class_path()  # Downloaded the first time, with a progress bar of its own.
    progress.show("starting an Apache Kafka of our own")
    began_s = time.monotonic()
    broker = stack.enter_context(EmbeddedBroker())
    progress.say(f"An Apache Kafka of our own at {broker.bootstrap}, ready in {time.monotonic() - began_s:.1f} s.")
    return {"bootstrap.servers": broker.bootstrap}


class _Bench:
    """Measures the figures and collects them."""

    def __init__(
        self, options: BenchOptions, kafka: Mapping[str, str], directory: Path, progress: BenchProgress
    ) -> None:
        self._options = options
        self._kafka = kafka
        self._directory = directory
        self._progress = progress
        self._family = f"bench_{uuid.uuid4().hex[:8]}"
        self.figures: dict[str, list[Figure]] = {CEILING: [], WORKER: []}
        self.delays_s: dict[str, list[float]] = {}
        if options.kafka is not None:
            progress.say(f"Topics {self._family}_... on {kafka['bootstrap.servers']}; they are deleted at the end.")

    def measure_throughput(self) -> None:
        """Measure all rounds."""
        options = self._options
        for number in range(1, options.rounds + 1):
            began_s = time.monotonic()
            self._round(number)
            took_s = time.monotonic() - began_s
            rates = ", ".join(f"{program} {rows[-1].records_per_s:,.0f}/s" for program, rows in self.figures.items())
            left_s = (options.rounds - number) * took_s + latency_s(options)
            still = f"; about {about(left_s)} left" if left_s else ""
            self._progress.say(f"Round {number} of {options.rounds}: {rates}{still}.")

    def _round(self, number: int) -> None:
        """Run both programs over the same input; they take turns as the first, as the second finds it in memory."""
        name, count = f"{self._family}_{number}", self._options.records
        outputs = f"{name}.pass1", f"{name}.pass2"
        with topics(self._kafka, name, *outputs):
            setup = write_setup(self._directory / name, name, self._kafka, topic=_TOPIC)
            show = partial(self._show, f"round {number}")
            on_progress = partial(show, "loading", count)
            load(self._kafka, setup.topic("publish"), count, self._options.keys, on_progress=on_progress)
            for program in (CEILING, WORKER) if number % 2 else (WORKER, CEILING):
                show(program, None, 0)
                if program == CEILING:
                    figure = run_ceiling(self._kafka, setup.directory, setup.topic("publish"), outputs, count)
                else:
                    figure = run_worker(setup, count, partial(show, program, count))
                self.figures[program].append(figure)

    def measure_latency(self) -> None:
        """Measure latency under each guarantee."""
        for guarantee in GUARANTEES:
            self.delays_s[guarantee] = self._delays_s(guarantee)

    def _delays_s(self, guarantee: Guarantee) -> list[float]:
        name, count = f"{self._family}_{guarantee}", self._options.latency_records
        with topics(self._kafka, name):
            setup = write_setup(self._directory / name, name, self._kafka, topic=_TOPIC, guarantee=guarantee)
            show = partial(self._show, "latency", guarantee.replace("_", " "), count)
            return delays_s(setup, count, self._options.rate, on_progress=show)

    def _show(self, phase: str, doing: str, total: int | None, done: int) -> None:
        self._progress.show(f"{phase}: {doing}", done, total)
