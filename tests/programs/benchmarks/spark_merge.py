"""Measures a merge on Spark with one core and two, beside one worker process: same topic, same broker, in turn.

Piece by piece: with `--bootstrap` and `--topic` the input is loaded once and kept, and `--only` runs one program.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from processor.config import load as load_settings
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from tests.programs.benchmarks.figures import Figures, Measured, load, write
from tests.programs.benchmarks.throughput import PARTITIONS, broker, print_progress, worker, write_settings

_MIB = 1024 * 1024
_SMALL_RECORDS = 2_000


def main() -> None:
    """Load, run the programs in turn, print a table."""
    arguments = _arguments()
    if arguments.merge:
        print(json.dumps(_merge(arguments)))
        return
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        name = arguments.topic or f"bench{uuid.uuid4().hex[:8]}"
        settings = write_settings(directory / name, name, bootstrap)
        admin = Admin({"bootstrap.servers": bootstrap})
        created = admin.create(specs(load_settings(settings)))
        if f"{name}.publish" in created:
            print_progress(f"loading {arguments.deltas:,} records of {arguments.keys:,} keys")
            load(bootstrap, f"{name}.publish", arguments.deltas, arguments.keys)
        count = sum(admin.end_offsets(f"{name}.publish", range(PARTITIONS)).values())
        if not arguments.topic:
            cleanup.callback(admin.delete, created)
        print(f"{'':12}{'records/s':>12}{'seconds':>9}{'CPU s/M':>9}{'a Python':>10}{'JVM':>9}   {count:,} records")
        figures: Figures = {}
        for program in arguments.only or ["worker", *(f"local[{cores}]" for cores in arguments.cores)]:
            if program == "worker":
                figure = worker(bootstrap, name, settings, count)
                figures[program] = [figure._asdict()]
                _row(program, count, count / figure.records_per_s, figure.cpu_s_per_million, "", "")
                continue
            run = _run(program, bootstrap, name, directory, arguments)
            said = json.loads(run.stdout.splitlines()[-1])
            rates = {"records_per_s": count / said["seconds"], "cpu_s_per_million": said["cpu_s"] / count * 1e6}
            figures[program] = [rates | {kind: said[kind] for kind in ("python_bytes", "jvm_bytes", "first_s")}]
            memory = (f"{said[kind] / _MIB:,.0f} MiB" for kind in ("python_bytes", "jvm_bytes"))
            _row(program, count, said["seconds"], said["cpu_s"] / count * 1e6, *memory)
            print_progress(f"  {said['counts']}, after a first merge of a few in {said['first_s']:.1f} s")
    write(arguments.json, figures)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deltas", type=int, default=1_000_000, help="records of the input")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tasks", type=int, default=16, help="tasks that fold")
    parser.add_argument("--with-deltas", action="store_true", help="keep every delta, as a worker writes it")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    parser.add_argument("--topic", help="an input that is kept: made if it is not there, and not deleted")
    parser.add_argument("--only", nargs="+", help="worker, local[1], local[2] …")
    parser.add_argument("--memory", default="2g", help="of Spark's JVM")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--merge", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(
    program: str, bootstrap: str, name: str, directory: Path, arguments: argparse.Namespace
) -> subprocess.CompletedProcess[str]:
    """One merge in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.programs.benchmarks.spark_merge",
        "--merge",
        program,
        "--bootstrap",
        bootstrap,
    ]
    command += ["--topic", name, "--tasks", str(arguments.tasks), "--memory", arguments.memory]
    run = subprocess.run(
        command + ["--with-deltas"] * arguments.with_deltas,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(directory)},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SystemExit(f"the merge failed:\n{run.stderr[-3000:]}")
    return run


def _merge(arguments: argparse.Namespace) -> dict[str, Any]:
    """One merge in this process, after a small one: a worker is not timed from its start either.

    The small one pays for what a process pays once: the session's first plans, Java's compiler, Python's imports.
    """
    from spark_integration import spark_session
    from spark_integration.merge.batch.merge_batch import merge_batch

    spark = spark_session(
        "sowstream-bench",
        **{
            "spark.master": arguments.merge,
            "spark.driver.memory": arguments.memory,
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            # On a busy machine, a process that stands still is not dead.
            "spark.network.timeout": "900s",
            "spark.executor.heartbeatInterval": "60s",
        },
    )
    options = {"kafka.bootstrap.servers": arguments.bootstrap}
    ends = Admin({"bootstrap.servers": arguments.bootstrap}).end_offsets(
        f"{arguments.topic}.publish", range(PARTITIONS)
    )
    begun_s = time.monotonic()
    small = {partition: min(end, _SMALL_RECORDS) for partition, end in ends.items()}
    merge_batch(spark, arguments.topic, options=options, until=small, partitions=arguments.tasks).unpersist()
    first_s = time.monotonic() - begun_s
    with Measured() as measured:
        merged = merge_batch(
            spark, arguments.topic, options=options, deltas=arguments.with_deltas, partitions=arguments.tasks
        )
    counts = dict(merged.counts) | {"keys": merged.records.count()}
    spark.stop()
    return {**measured.figures, "first_s": first_s, "counts": counts}


def _row(program: str, count: int, seconds: float, cpu: float, python: str, jvm: str) -> None:
    print(f"{program:12}{count / seconds:>12,.0f}{seconds:>9.1f}{cpu:>9.1f}{python:>10}{jvm:>9}", flush=True)


if __name__ == "__main__":
    main()
