"""Measures one worker, exactly once, beside the ceiling and Kafka Streams, over many kinds of load, in turn."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from processor.kafka.clients.log_reader import LogReader
from processor.trial.bench import programs, setup
from processor.trial.bench.result import Figure, ratios
from tests.programs.benchmarks.figures import write
from tests.programs.benchmarks.growth_feed import Shape, fulls, mixed, publish
from tests.programs.benchmarks.peers import kafka_streams, kafka_streams_loads
from tests.programs.benchmarks.throughput import broker, print_progress, setup_of, write_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_OURS, _CEILING, _RIVAL = "sowstream", "pass-through", "Kafka Streams"
_GOAL, _CEILING_GOAL = 2.0, 0.45


class Cell(NamedTuple):
    """One kind of load."""

    keys: int
    """The keys that the state has before."""
    inserts: float
    """The share of records whose key is new, 0 to 1."""
    size_bytes: int
    """The size of a full record."""
    is_skewed: bool
    """True if the keys of deltas follow Zipf's law."""

    def __str__(self) -> str:
        skew = "zipf" if self.is_skewed else "uniform"
        return f"{self.keys:,} keys, {self.inserts:.0%} new, {self.size_bytes:,} B, {skew}"


def main() -> None:
    """Run each cell's rounds, print its line, and the cells that miss the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--inserts", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[70, 230, 1024], help="bytes of a full record")
    parser.add_argument("--skew", nargs="+", choices=["uniform", "zipf"], default=["uniform", "zipf"])
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--one-state",
        action="store_true",
        help="cells of the same keys and size share one state and all rounds: for states that take long to fill, and "
        "are much larger than what the cells add",
    )
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    cells = [
        Cell(keys, inserts, size, skew == "zipf")
        for keys, size, inserts, skew in itertools.product(
            arguments.keys, arguments.sizes, arguments.inserts, arguments.skew
        )
        if skew == "uniform" or inserts < 1  # Without deltas nothing is skewed.
    ]
    figures: dict[Cell, dict[str, list[Figure]]] = {cell: {} for cell in cells}
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)

        def take(cell: Cell, program: str, figure: Figure) -> None:
            figures[cell].setdefault(program, []).append(figure)
            load = os.getloadavg()[0]
            print_progress(f"  {cell!s:44} {program:14} {figure.records_per_s:9,.0f}/s, load average {load:.1f}")

        if arguments.one_state:
            for _, alike in itertools.groupby(cells, key=lambda cell: (cell.keys, cell.size_bytes)):
                measure_loads(bootstrap, directory, [*alike] * arguments.rounds, arguments.records, take)
        else:
            for number, cell in itertools.product(range(1, arguments.rounds + 1), cells):
                print_progress(f"round {number} of {arguments.rounds}")
                for program, figure in measured(bootstrap, directory, cell, arguments.records).items():
                    take(cell, program, figure)
    report(figures)
    write(
        arguments.json,
        {
            f"{cell}: {program}": [figure._asdict() for figure in of_program]
            for cell, of_cell in figures.items()
            for program, of_program in of_cell.items()
        },
    )


def measured(bootstrap: str, directory: Path, cell: Cell, count: int) -> dict[str, Figure]:
    """Run each program once over the same input: the state is filled first, which is not measured."""
    name = f"bench{uuid.uuid4().hex[:8]}"
    kafka, shape = {"bootstrap.servers": bootstrap}, Shape(cell.keys, cell.size_bytes)
    with setup.topics(kafka, name, f"{name}.measured", f"{name}.pass1", f"{name}.pass2"):
        publish(bootstrap, f"{name}.publish", fulls(shape))
        # The ceiling has no state to fill: it reads the measured records alone.
        for topic in (f"{name}.publish", f"{name}.measured"):
            publish(bootstrap, topic, mixed(shape, count, cell.inserts, is_skewed=cell.is_skewed))
        place = directory / name
        place.mkdir()
        figures = {
            _CEILING: programs.run_ceiling(kafka, place, f"{name}.measured", (f"{name}.pass1", f"{name}.pass2"), count),
            _OURS: programs.run_worker(
                setup_of(bootstrap, name, write_settings(place / "ours", name, bootstrap)), count, first=cell.keys
            ),
        }
        if (rival := kafka_streams(place, options=[f"-Dfirst={cell.keys}"])) is not None:
            figures[_RIVAL] = rival(bootstrap, name, count)
        shutil.rmtree(place, ignore_errors=True)
    return figures


def measure_loads(
    bootstrap: str, directory: Path, cells: Sequence[Cell], count: int, take: Callable[[Cell, str, Figure], None]
) -> None:
    """Fill each program's state once, and measure one load after the other on it.

    A program stands still while its next load is published: it finds all of it at once.
    """
    name, rivals_name = (f"bench{uuid.uuid4().hex[:8]}" for _ in range(2))
    kafka, place = {"bootstrap.servers": bootstrap}, directory / name
    place.mkdir()
    loads = _loads(cells, count)
    for cell, records in zip(cells, loads, strict=True):
        with setup.topics(kafka, f"{name}c", f"{name}.pass1", f"{name}.pass2"):
            publish(bootstrap, f"{name}c.publish", iter(records))
            outputs = f"{name}.pass1", f"{name}.pass2"
            take(cell, _CEILING, programs.run_ceiling(kafka, place, f"{name}c.publish", outputs, count))
    shape = Shape(cells[0].keys, cells[0].size_bytes)
    with setup.topics(kafka, name):
        publish(bootstrap, f"{name}.publish", fulls(shape))
        with _filled_worker(setup_of(bootstrap, name, write_settings(place / "ours", name, bootstrap)), shape) as run:
            for cell, records in zip(cells, loads, strict=True):
                take(cell, _OURS, run(records))
    shutil.rmtree(place / "ours")
    with setup.topics(kafka, rivals_name):
        publish(bootstrap, f"{rivals_name}.publish", fulls(shape))
        with kafka_streams_loads(place, bootstrap, rivals_name, shape.keys, len(cells), count) as rival:
            for cell, records in zip(cells, loads, strict=True):
                if rival is not None:
                    with _standing_still(psutil.Process(rival.process_id)):
                        publish(bootstrap, f"{rivals_name}.publish", iter(records))
                    take(cell, _RIVAL, rival.figure())
    shutil.rmtree(place)


def _loads(cells: Sequence[Cell], count: int) -> list[list[tuple[bytes, bytes]]]:
    """The records of each cell; a key that is new in one is new in that one alone."""
    loads, keys = [], cells[0].keys
    for number, cell in enumerate(cells):
        shape = Shape(keys, cell.size_bytes)
        loads.append(list(mixed(shape, count, cell.inserts, is_skewed=cell.is_skewed, seed=number)))
        keys = max(keys, *(int(key) + 1 for key, _ in loads[-1]))
    return loads


@contextlib.contextmanager
def _filled_worker(ours: setup.BenchSetup, shape: Shape) -> Iterator[Callable[[Sequence[tuple[bytes, bytes]]], Figure]]:
    """A worker that has merged a record of each key; gives what publishes a load and measures it until its commit."""
    reader = LogReader(ours.kafka, group=ours.group)
    done = 0

    def has_committed() -> bool:
        return programs.committed(reader, ours.topic("publish"), ours.partitions) >= done

    def run(records: Sequence[tuple[bytes, bytes]]) -> Figure:
        nonlocal done
        program = programs.program_of(process)
        with _standing_still(program):
            publish(ours.kafka["bootstrap.servers"], ours.topic("publish"), iter(records))
        done += len(records)
        started_s, cpu = time.monotonic(), programs.cpu_s(program)
        programs.wait_until(process, has_committed, every_s=0.02, count=len(records))
        seconds, cpu = time.monotonic() - started_s, programs.cpu_s(program) - cpu
        return Figure(len(records) / seconds, cpu / len(records) * 1e6)

    try:
        with programs.running(programs.worker_process(ours)) as process:
            done = shape.keys
            programs.wait_until(process, has_committed, every_s=0.5, count=shape.keys)
            yield run
    finally:
        reader.close()


@contextlib.contextmanager
def _standing_still(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def report(figures: dict[Cell, dict[str, list[Figure]]]) -> None:
    """Print a line a cell: our rate, and the medians of the rounds' ratios, a missed goal with a star."""
    print(f"{'':44}{'records/s':>10}{'of the ceiling':>16}{'x Kafka Streams':>17}")
    for cell, of_cell in figures.items():
        rate = statistics.median(figure.records_per_s for figure in of_cell[_OURS])
        line = f"{cell!s:44}{rate:>10,.0f}{_ratio(of_cell, _CEILING, _CEILING_GOAL):>16}"
        print(line + (f"{_ratio(of_cell, _RIVAL, _GOAL):>17}" if _RIVAL in of_cell else ""))


def _ratio(of_cell: dict[str, list[Figure]], other: str, goal: float) -> str:
    rounds: Sequence[float] = ratios(of_cell[_OURS], of_cell[other])
    ratio = statistics.median(rounds)
    return f"{ratio:.2f}{' ' if ratio >= goal else '*'}"


if __name__ == "__main__":
    main()
