"""Measures the time until a record's delta is read while a worker, exactly once, runs at a part of its peak rate."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import tempfile
import time
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader, Position
from processor.kafka.clients.publisher import Publisher
from processor.kafka.partitioner import partition_for
from processor.trial.bench.programs import wait_until
from processor.trial.bench.result import percentile
from tests.programs.benchmarks.figures import write
from tests.programs.benchmarks.growth_run import Grown, Size
from tests.programs.benchmarks.soak_feed import KEPT, feed
from tests.programs.benchmarks.throughput import broker, print_progress

if TYPE_CHECKING:
    from processor.trial.broker.guarded import GuardedProcess

PARTITION = 0
"""Partition of the probes; only this one is read, so that the reading takes little of the machine."""
PROBES = 200
"""Number of different keys of the probes."""
RATE = 100.0
"""Rate of the probes, per second."""
WARM_UP_S = 5.0
"""Time of the load whose probes are not counted."""
LATE_S = 60.0
"""Largest waiting time for the last probe."""


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", type=float, default=0.5, help="of what is measured just before")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each round, after a warm-up")
    parser.add_argument("--records", type=int, default=500_000, help="of the run that measures the peak")
    parser.add_argument("--keys", type=int, default=Size().keys)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    rounds: list[dict[str, float]] = []
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        grown = cleanup.enter_context(Grown(bootstrap, directory, Size(keys=arguments.keys), KEPT))
        grown.fill()
        for _ in range(arguments.rounds):
            peak = grown.run(arguments.records).records_per_s
            rate = peak * arguments.load
            with grown.worker() as process:
                wait_until(process, grown.is_shared, every_s=0.05)
                with feed(bootstrap, grown, rate):
                    delays = probed_s(bootstrap, grown, process, arguments.seconds)
                # A transaction marker may follow the last record of a partition.
                wait_until(process, lambda: grown.lag() <= grown.partitions, every_s=0.1)
            p50, p99 = (percentile(delays, share) * 1000 for share in (0.5, 0.99))
            rounds.append({"peak": peak, "rate": rate, "p50_ms": p50, "p99_ms": p99})
            print_progress(f"{rate:,.0f} of {peak:,.0f} records/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    rate, p50, p99 = (statistics.median(one[field] for one in rounds) for field in ("rate", "p50_ms", "p99_ms"))
    print(f"at {rate:,.0f} records/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms   (medians of {len(rounds)} rounds)")
    write(arguments.json, {f"load {arguments.load:g}": rounds})


def probed_s(bootstrap: str, grown: Grown, process: GuardedProcess, seconds: float) -> list[float]:
    """The time from the publisher's call to the reader's, for each probe after the warm-up, in seconds."""
    kafka = {"bootstrap.servers": bootstrap}
    output = grown.source.removesuffix(".publish") + ".delta"
    named = (b"probe%d" % number for number in count())
    keys = list(islice((key for key in named if partition_for(key, grown.partitions) == PARTITION), PROBES))
    publisher = Publisher({**kafka, "linger.ms": "0"})
    reader = LogReader({**kafka, "fetch.wait.max.ms": "5"}, group=f"{output}.probe")
    reader.add([Position(output, PARTITION, Admin(kafka).end_offsets(output, [PARTITION])[PARTITION])])
    delays: list[float] = []
    began_s, sent, seen = time.monotonic(), 0, 0
    probe_count = int((WARM_UP_S + seconds) * RATE)
    with contextlib.closing(reader):
        while seen < probe_count:
            now_s = time.monotonic()
            if not process.is_running or now_s > began_s + WARM_UP_S + seconds + LATE_S:
                raise SystemExit(f"the worker ended or is {LATE_S:.0f} s late; its log ends:\n{process.tail()}")
            if sent < probe_count and now_s >= began_s + sent / RATE:
                publisher.send(grown.source, keys[sent % PROBES], json.dumps({"at": now_s}).encode())
                sent += 1
            for message in reader.read(1_000, 0.002).messages:
                if (message.key() or b"").startswith(b"probe"):
                    seen += 1
                    if seen > WARM_UP_S * RATE:
                        delays.append(time.monotonic() - json.loads(message.value() or b"")["at"])
    return delays


if __name__ == "__main__":
    main()
