"""Measures restores of a SOW topic against those of Kafka Streams: from empty directories, in turn; or restarts."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import statistics
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
from processor.kafka.clients.log_reader import LogReader
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.runtime.worker import os_process
from processor.trial.broker.directories import cache_dir
from processor.trial.broker.java import find_java
from tests.programs.benchmarks.figures import write
from tests.programs.benchmarks.throughput import PARTITIONS, TIMEOUT_S, broker, print_progress, write_settings

STREAMS = "4.3.1"
"""The version of Kafka Streams to compare with."""
TRANSACTION_RECORDS = 100_000
PLAIN_BYTES = 230
"""About the size of a record with its shortest notes."""


def main() -> None:
    """Load the topic once, then run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--record-bytes", type=int, default=PLAIN_BYTES, help="about the size of a record")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of Kafka Streams")
    parser.add_argument("--warm", action="store_true", help="restarts: after a close, and after a kill")
    parser.add_argument("--alone", action="store_true", help="without Kafka Streams")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        name = f"bench{uuid.uuid4().hex[:8]}"
        settings = write_settings(directory / name, name, bootstrap)
        admin = Admin({"bootstrap.servers": bootstrap})
        topics = specs(load_settings(settings))
        admin.create(topics)
        cleanup.callback(admin.delete, [topic.name for topic in topics])
        print_progress(f"loading {arguments.records:,} records")
        load(bootstrap, name, arguments.records, arguments.record_bytes)
        if arguments.warm:
            restarts(name, settings, arguments.rounds)
            return
        streams = None if arguments.alone else streams_jars()
        ours, theirs = [], []
        for number in range(1, arguments.rounds + 1):
            shutil.rmtree(load_settings(settings).state_dir, ignore_errors=True)
            ours.append(restored(name, settings))
            print_progress(f"round {number}: {json.dumps(ours[-1])}")
            if streams is not None:
                theirs.append(streams_restored(streams, bootstrap, f"{name}.sow", arguments.threads, directory))
                print_progress(f"         Kafka Streams {json.dumps(theirs[-1])}")
    report(arguments.records, ours, theirs)
    ours = [one | {"records_per_s": arguments.records / one["seconds"]} for one in ours]
    theirs = [one | {"records_per_s": one["records"] / one["seconds"]} for one in theirs]
    write(arguments.json, {"sowstream": ours, "Kafka Streams": theirs})


def load(bootstrap: str, name: str, count: int, record_bytes: int) -> None:
    """Write a SOW topic as a worker does, each key once, in a seeded order."""
    topic = f"{name}.sow"
    group = LogReader({"bootstrap.servers": bootstrap}, group=f"{name}.{name}")
    rng = random.Random(7)
    keys = list(range(count))
    rng.shuffle(keys)
    headers = [[("version", b"%d" % version)] for version in range(1, 8)]
    more = max(0, record_bytes - PLAIN_BYTES)
    text = rng.randbytes(500_000 + more).hex().encode()  # Each record has another part of it.
    producer = TransactionalProducer(
        {"bootstrap.servers": bootstrap},
        transactional_id=f"{topic}.load",
        transaction_timeout_s=60,
        is_stopping=lambda: False,
    )
    producer.start()
    for begin in range(0, count, TRANSACTION_RECORDS):
        parts: list[list[Any]] = [[] for _ in range(PARTITIONS)]
        for number, key in enumerate(keys[begin : begin + TRANSACTION_RECORDS], begin):
            notes = b"x" * 40 + text[number % 1_000_000 : number % 1_000_000 + more]
            value = (
                b'{"id":%d,"status":"new","symbol":"SYM%d","qty":%d,"price":%.14f,"notes":"%s","customer":'
                b'{"name":"c%d","tier":%d,"address":{"zip":%d}},"tags":["a","b","c"],"ts":%d}'
                % (key, key % 500, number % 1000, rng.random() * 100, notes, key, key % 5, key % 99_999, number)
            )
            parts[key % PARTITIONS].append((b"%d" % key, value, headers[number % 7]))
        for partition, part in enumerate(parts):
            producer.send(topic, partition, part)
        producer.commit(f"{name}.publish", dict.fromkeys(range(PARTITIONS), 0), group.group_metadata())
    producer.close()
    group.close()


def restored(name: str, settings: Path, *, is_killed: bool = False) -> dict[str, float]:
    """Measure one restore in a process of its own, which is then closed or killed."""
    with settings.with_name("restore.log").open("wb") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.benchmarks.restoring", name, str(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
            env=os_process.whole_environment(),
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("{"):
                if is_killed:
                    process.kill()
                return dict(json.loads(line))
        raise SystemExit(f"the restore ended:\n{settings.with_name('restore.log').read_text()[-3000:]}")
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()


def restarts(name: str, settings: Path, rounds: int) -> None:
    """Print the time until a worker's state is ready again."""
    print_progress(f"cold: {json.dumps(restored(name, settings))}")
    for what, is_killed in (("close", False), ("kill -9", True)):
        restored(name, settings, is_killed=is_killed)
        seconds = [restored(name, settings, is_killed=is_killed)["seconds"] for _ in range(rounds)]
        print(f"ready after a {what:8} {statistics.median(seconds):6.2f} s   (rounds: {seconds})")


def streams_jars() -> str:
    """The class path of Kafka Streams; downloaded once, by the Ivy that PySpark ships."""
    import pyspark

    directory = cache_dir() / f"kafka-streams-{STREAMS}"
    if not any(directory.glob("kafka-streams-*.jar")):
        print_progress(f"fetching Kafka Streams {STREAMS}")
        [ivy] = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
        pattern = str(directory / "[artifact]-[revision](-[classifier]).[ext]")
        subprocess.run(
            [
                *(find_java(), "-jar", ivy, "-cache", cache_dir() / "ivy-streams"),
                *("-dependency", "org.apache.kafka", "kafka-streams", STREAMS),
                *("-confs", "default", "-retrieve", pattern),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return f"{directory}/*"


def streams_restored(jars: str, bootstrap: str, topic: str, threads: int, directory: Path) -> dict[str, float]:
    """Measure one restore by Kafka Streams from an empty directory."""
    program = Path(__file__).with_name("KafkaStreamsRestore.java")
    state = Path(tempfile.mkdtemp(dir=directory))
    order = [find_java(), "-Xmx2G", "-cp", jars, program, bootstrap, topic, str(PARTITIONS), str(threads), state]
    began_s = time.monotonic()
    run = subprocess.run(
        order, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=os_process.whole_environment()
    )
    shutil.rmtree(state, ignore_errors=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"Kafka Streams ended after {time.monotonic() - began_s:.0f} s:\n{run.stderr[-3000:]}")
    return dict(json.loads(lines[-1]))


def report(records: int, ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    """Print the medians, side by side."""
    rates = [records / one["seconds"] for one in ours]
    middle = {name: statistics.median(one[name] for one in ours) for name in ours[0]}
    print(f"{'':14}{'records/s':>12}{'seconds':>9}   (medians of {len(ours)} rounds)")
    print(f"{'sowstream':14}{statistics.median(rates):>12,.0f}{middle['seconds']:>9.2f}")
    if theirs:
        other = [one["records"] / one["seconds"] for one in theirs]
        seconds = statistics.median(one["seconds"] for one in theirs)
        print(f"{'Kafka Streams':14}{statistics.median(other):>12,.0f}{seconds:>9.2f}")
        ratios = sorted(rate / than for rate, than in zip(rates, other, strict=True))
        print(f"ratio         {statistics.median(ratios):>12.2f}   (rounds: {', '.join(f'{r:.2f}' for r in ratios)})")
    print(
        f"CPU {middle['cpu_s'] / records * 1e6:.1f} s/M records, RSS {middle['rss_mb']:.0f} MB, disk "
        f"{middle['disk_mb']:.0f} MB, longest turn {middle['longest_turn_s'] * 1000:.0f} ms, 20,000 cold reads "
        f"right after {middle['reads_s']:.2f} s"
    )


if __name__ == "__main__":
    main()
