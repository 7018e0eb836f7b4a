"""Measures reads, publishing and jobs next to what a Spark engineer would write with Spark alone.

    python -m tests.programs.benchmarks.spark_topics --records 1000000 --keys 100000 --rounds 3

A worker merges the input first, so that the topics are those of a worker. Both sides of a pair run in turn, in one
session, on one embedded broker, and the side that begins changes with each round. A figure is records a second on the
clock, as Kafka or a disk is at one end of each. Round -1 is of a cold session, and shown alone. `--only first` measures
both sides of some pairs as the first query of a session of their own, in seconds.

pair           ours                                                 Spark alone
-------------  ---------------------------------------------------  ------------------------------------------------
read_sow       `read_sow`, typed columns without metadata           a scan of the SOW topic, `max_by`, and `from_json`
read_metadata  the same with metadata                               the same, with key, version, time, place and headers
sow_filter     the same with a filter                               the same, and `where`
sow_keys       the same with ten keys                               the same, and `where`
format_sow     `format("sow")`                                      as for `read_sow`
format_filter  the same with a filter                               as for `sow_filter`
stream_deltas  `stream_deltas` with `_sow.changed`                  a stream of the delta topic, and `from_json`
publish        `publish_deltas`, ten rows of each key, in order     `to_json`, the sink `kafka`, and the same headers
publish_whole  `publish_records` of the same rows                   the same
archive        the job `archive` of the publish topic               a stream from Kafka to Parquet by date
versions       the job `table` of `kind: scd2`, of the delta topic  `lead` over an archive of the SOW topic
backfill       `backfill` of an archive into an empty family        `merge_batch` of the same archive
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.config import load as load_settings
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.topics.family import TopicSpec, control_spec
from tests.programs.benchmarks import spark_alone, spark_ours
from tests.programs.benchmarks.figures import Figures, write
from tests.programs.benchmarks.spark_alone import Places
from tests.programs.benchmarks.throughput import PARTITIONS, broker, load, print_progress, worker, write_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


class Pair(NamedTuple):
    """Two ways to the same result."""

    ours: Callable[[SparkSession, Places], object]
    alone: Callable[[SparkSession, Places], object]
    bar: float
    """The lowest ratio of rates, ours to Spark's, that is good enough."""
    reads_files: bool = False
    """Whether it reads the files that Spark has written before."""


PAIRS: Final = {
    "read_sow": Pair(spark_ours.read_sow_topic, spark_alone.read_sow_topic, 1.0),
    "read_metadata": Pair(spark_ours.read_sow_metadata, spark_alone.read_sow_metadata, 1.0),
    "sow_filter": Pair(spark_ours.read_sow_filtered, spark_alone.read_sow_filtered, 1.43),
    "sow_keys": Pair(spark_ours.read_sow_keys, spark_alone.read_sow_keys, 1.43),
    "format_sow": Pair(spark_ours.load_sow_format, spark_alone.read_sow_topic, 1.0),
    "format_filter": Pair(spark_ours.load_sow_filtered, spark_alone.read_sow_filtered, 1.43),
    "stream_deltas": Pair(spark_ours.stream_delta_topic, spark_alone.stream_delta_topic, 0.6),
    "publish": Pair(spark_ours.publish_rows, spark_alone.publish_rows, 0.6, reads_files=True),
    "publish_whole": Pair(spark_ours.publish_whole, spark_alone.publish_rows, 0.6, reads_files=True),
    "archive": Pair(spark_ours.archive_topic, spark_alone.archive_topic, 0.8),
    "versions": Pair(spark_ours.write_versions, spark_alone.write_versions, 1.0, reads_files=True),
}
BACKFILL: Final = "backfill"
BACKFILL_BAR: Final = 0.8
FIRST: Final = "first"
FIRST_PAIRS: Final = ("read_sow", "format_sow", "publish_whole")


def main() -> None:
    """Fill the topics, run the rounds, print medians and ratios."""
    arguments = _arguments()
    with broker(arguments.bootstrap) as bootstrap, ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sowstream-bench-")))
        spark = spark_ours.session(directory, arguments.cores)
        cleanup.callback(spark.stop)
        figures: Figures = {}
        pairs = [name for name in arguments.only if name in PAIRS]
        if pairs or FIRST in arguments.only:
            places = _filled(spark, directory, bootstrap, "bench", arguments.records, arguments.keys)
            if FIRST in arguments.only or any(PAIRS[name].reads_files for name in pairs):
                spark_alone.prepare(spark, places)
            for number in range(-1, arguments.rounds):  # The first one warms up.
                for name in pairs:
                    _round(spark, places, name, number, figures)
            for number in range(arguments.rounds if FIRST in arguments.only else 0):
                _first(places, arguments.cores, number, figures)
        if BACKFILL in arguments.only:
            _backfill(spark, directory, bootstrap, arguments, figures)
    _print(figures)
    write(arguments.json, figures)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="records of the input")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--backfilled", type=int, default=5_000_000, help="records of the archive of backfill")
    names = [*PAIRS, BACKFILL, FIRST]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args()


def _filled(
    spark: SparkSession, directory: Path, bootstrap: str, name: str, records: int, keys: int, *, is_merged: bool = True
) -> Places:
    """Create the topics of a family, publish the input, and let a worker merge it."""
    settings = write_settings(directory / name, name, bootstrap)
    targets = [TopicSpec(target, "publish", PARTITIONS, {}) for target in (f"{name}pub.publish", f"{name}.alone")]
    Admin({"bootstrap.servers": bootstrap}).create([*specs(load_settings(settings)), control_spec(), *targets])
    print_progress(f"{name}: publishing {records:,} records of {keys:,} keys")
    load(bootstrap, f"{name}.publish", records, keys)
    if is_merged:
        worker(bootstrap, name, settings, records)
    return Places(bootstrap, name, settings, directory, records)


def _round(spark: SparkSession, places: Places, name: str, number: int, figures: Figures) -> None:
    """Run both sides of a pair once."""
    sides = {"": PAIRS[name].ours, ", Spark alone": PAIRS[name].alone}
    for label in sorted(sides, reverse=number % 2 == 1):
        begun_s = time.monotonic()
        sides[label](spark, places)
        rate = places.records / (time.monotonic() - begun_s)
        print_progress(f"round {number}: {name}{label} {rate:,.0f}/s")
        if number >= 0:
            figures.setdefault(name + label, []).append({"records_per_s": rate})
    if name == "versions" and number < 0:
        spark_ours.check_versions(spark, places)


def _first(places: Places, cores: int, number: int, figures: Figures) -> None:
    """Measure both sides of a pair as the first query of a session, each in a process of its own."""
    for name in FIRST_PAIRS:
        sides = {"": PAIRS[name].ours, ", Spark alone": PAIRS[name].alone}
        for label in sorted(sides, reverse=number % 2 == 1):
            query = sides[label]
            command = [sys.executable, "-m", spark_ours.__name__, query.__module__, query.__name__, str(cores)]
            answer = subprocess.run([*command, *map(str, places)], stdout=subprocess.PIPE, text=True, check=True)
            times_s = json.loads(answer.stdout.splitlines()[-1])
            each = ", ".join(f"{part} {time_s:.2f} s" for part, time_s in times_s.items())
            print_progress(f"round {number}: {name}{label}: {each}")
            figures.setdefault(f"{FIRST} {name}{label}", []).append(times_s)


def _backfill(
    spark: SparkSession, directory: Path, bootstrap: str, arguments: argparse.Namespace, figures: Figures
) -> None:
    """Merge one archive twice: alone, and into a family without records. Once, as a family is empty only once."""
    records = arguments.backfilled
    places = _filled(spark, directory, bootstrap, "past", records, arguments.keys, is_merged=False)
    archive = spark_alone.archive_topic(spark, places)
    for label, merge in (
        (", Spark alone", spark_ours.merge_archive),
        ("", spark_ours.backfill_archive),
    ):
        begun_s = time.monotonic()
        merge(spark, places, archive)
        rate = records / (time.monotonic() - begun_s)
        print_progress(f"{BACKFILL}{label} {rate:,.0f}/s")
        figures[BACKFILL + label] = [{"records_per_s": rate}]


def _print(figures: Figures) -> None:
    print(f"{'':16}{'records/s':>12}{'Spark alone':>14}{'ratio':>8}{'bar':>6}   rounds")
    for name in (*PAIRS, BACKFILL):
        if name not in figures:
            continue
        ours, alone = ([each["records_per_s"] for each in figures[side]] for side in (name, f"{name}, Spark alone"))
        ratios = [one / other for one, other in zip(ours, alone, strict=True)]
        bar = PAIRS[name].bar if name in PAIRS else BACKFILL_BAR
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"{name:16}{statistics.median(ours):>12,.0f}{statistics.median(alone):>14,.0f}"
            f"{statistics.median(ratios):>8.2f}{bar:>6}   {each}"
        )
    for name in FIRST_PAIRS:
        if f"{FIRST} {name}" in figures:
            ours, alone = (
                [one["first_s"] for one in figures[f"{FIRST} {side}"]] for side in (name, f"{name}, Spark alone")
            )
            print(
                f"first query, {name}: {statistics.median(ours):.2f} s, Spark alone {statistics.median(alone):.2f} s, "
                f"{statistics.median(one - other for one, other in zip(ours, alone, strict=True)):.2f} s more"
            )


if __name__ == "__main__":
    main()
