"""Measures one restore as a worker does it: NAME SETTINGS-FILE; prints one line of JSON, and waits for its end.

A line on standard input ends it in good order; after a kill instead, a restart shows how much it reads again.
"""

from __future__ import annotations

import gc
import json
import random
import resource
import sys
import time
from pathlib import Path

from processor.codec import codec_of
from processor.config import load
from processor.installation.configured_pipelines import pipelines
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.recovery.state_directory import StateDirectory
from processor.runtime.task import Task
from processor.store.rocksdb_memory import RocksMemory

READS = 20_000
"""Number of cold keys that are read as soon as the restore is complete."""


def main(name: str, settings: Path) -> None:
    """Restore all partitions of a topic."""
    config = load(settings)
    [pipeline] = pipelines(config, [name])
    gc.freeze()
    gc.disable()
    admin = Admin(config.kafka)
    memory = RocksMemory(config.runtime.block_cache_bytes)
    states = StateDirectory(config.state_dir / config.application_id / name, pipeline, config.runtime, memory, admin)
    began_s = time.monotonic()
    restorer = Restorer(
        reader=LogReader(config.kafka, group=f"{config.application_id}.{name}"),
        admin=admin,
        source=pipeline.source,
        sow=pipeline.output("sow"),
        mark=pipeline.output("mark") if pipeline.keeps_position else None,
        open_state=states.open,
        stall_timeout_s=config.runtime.internal.restore_stall_timeout_s,
    )
    partitions = pipeline.topic.partitions
    tasks = [Task(pipeline, number, codec_of(config, name)) for number in range(partitions)]
    for task in tasks:
        restorer.add(task)
    ready, longest_s = 0, 0.0
    while ready < partitions:
        turn_s = time.monotonic()
        ready += len(restorer.advance(0.02))
        longest_s = max(longest_s, time.monotonic() - turn_s)
    seconds = time.monotonic() - began_s
    used = resource.getrusage(resource.RUSAGE_SELF)
    result = {
        "seconds": seconds,
        "cpu_s": used.ru_utime + used.ru_stime,
        "rss_mb": used.ru_maxrss / 1024,
        "longest_turn_s": longest_s,
        "reads_s": _reads_s(tasks),
        "disk_mb": sum(task.state.usage()["disk"] for task in tasks) / 1e6,
    }
    print(json.dumps(result), flush=True)
    sys.stdin.readline()
    for task in tasks:
        task.close()
    restorer.close()


def _reads_s(tasks: list[Task]) -> float:
    """The time to read cold keys, in batches of 500, from the state right after a restore."""
    rng = random.Random(3)
    began_s = time.monotonic()
    for number in range(0, READS, 500):
        store = tasks[number % len(tasks)].state.store
        store.get_many([b"%d" % rng.randrange(2**31) for _ in range(250)] + [b"%d" % key for key in range(250)])
    return time.monotonic() - began_s


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
