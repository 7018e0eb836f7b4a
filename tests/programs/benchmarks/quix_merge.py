"""Quix Streams merging deltas, in an environment of its own: BOOTSTRAP INPUT SOW DELTA GUARANTEE RECORDS DIRECTORY.

It does less than a worker: it compares no values, and has no nulls, headers, versions or checks. It prints one line of
JSON when the given number of records is processed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from quixstreams import Application
from quixstreams.models import TopicConfig


def main() -> None:
    """Run until the given number of records is processed."""
    bootstrap, source, sow, delta, guarantee, records, directory = sys.argv[1:]
    app = Application(
        broker_address=bootstrap,
        consumer_group=sow,
        auto_offset_reset="earliest",
        processing_guarantee=guarantee,
        commit_interval=0.2,
        state_dir=directory,
        loglevel="ERROR",
        producer_extra_config={"compression.type": "lz4", "linger.ms": 25, "batch.size": 1_000_000,
                               "queue.buffering.max.messages": 1_000_000},
        consumer_extra_config={"queued.min.messages": 200_000},
    )  # fmt: skip
    four = TopicConfig(num_partitions=4, replication_factor=1)
    frame = app.dataframe(app.topic(source, value_deserializer="json", key_deserializer="bytes"))
    frame = frame.apply(Step(app, int(records)), stateful=True)
    for place, name in enumerate((sow, delta)):
        output = app.topic(name, value_serializer="json", key_serializer="bytes", config=four)
        frame.apply(lambda pair, place=place: pair[place]).to_topic(output)
    app.run()


class Step:
    """Merges one record, and counts it."""

    def __init__(self, app: Application, records: int) -> None:
        self._app, self._records, self._done = app, records, 0
        self._began_s = self._cpu_s = 0.0

    def __call__(self, value: Any, state: Any) -> tuple[Any, Any]:
        """Merge a record; returns the merged record and the changed fields."""
        if not self._done:
            self._began_s, self._cpu_s = time.monotonic(), time.process_time()
        record = state.get("record")
        change = value if record is None else merge(record, value)
        state.set("record", record or value)
        self._done += 1
        if self._done == self._records:
            seconds, cpu_s = time.monotonic() - self._began_s, time.process_time() - self._cpu_s
            print(json.dumps({"seconds": seconds, "cpu_s": cpu_s}), flush=True)
            self._app.stop()
        return record or value, change


def merge(record: Any, change: Any) -> Any:
    """Merge a change into a record, in place; returns the changed fields."""
    out = {}
    for field, value in change.items():
        old = record.get(field)
        if type(value) is dict and type(old) is dict:
            out[field] = merge(old, value)
        else:
            record[field] = out[field] = value
    return out


if __name__ == "__main__":
    main()
