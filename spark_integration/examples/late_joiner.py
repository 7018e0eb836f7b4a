"""Checks that a late joiner loses nothing: a snapshot and the deltas after it give the records of a later snapshot.

It notes the end of the delta topic, reads the SOW topic, waits, and reads it again. Then it applies the deltas since
then to the first snapshot, key by key, beginning with the version after that of the snapshot, or with an insert. ::

    python -m spark_integration.examples.late_joiner --bootstrap localhost:9092 --topic orders --wait 30
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict

from pyspark.sql import Row, SparkSession

from processor.merge.delta import apply_delta
from sowstream.spark import read_deltas, read_sow, spark_session
from spark_integration.foundation.options import Options

Snapshot = dict[str, tuple[int, str]]
"""Version and record of each key."""


def snapshot(spark: SparkSession, topic: str, options: Options) -> Snapshot:
    """The current version and record of each key."""
    rows = read_sow(spark, topic, options=options).select("_sow.sow_key", "_sow.version", "value").collect()
    return {row["sow_key"]: (row["version"], row["value"]) for row in rows}


def deltas(spark: SparkSession, topic: str, options: Options) -> dict[str, list[Row]]:
    """The deltas published until now, by key, in the order of the topic."""
    rows = read_deltas(spark, topic, options=options).select("value", "_sow.*").orderBy("partition", "offset")
    by_key: dict[str, list[Row]] = defaultdict(list)
    for row in rows.collect():
        by_key[row["sow_key"]].append(row)
    return by_key


def differing(before: Snapshot, after: Snapshot, by_key: dict[str, list[Row]]) -> list[str]:
    """The keys whose record in the second snapshot differs from the first one after its deltas are applied."""
    wrong = []
    for key, (version, record) in after.items():
        joined, text = before.get(key, (0, "null"))
        replayed = json.loads(text)
        places = [row["version"] for row in by_key[key]]
        begins = [row["version"] == joined + 1 if joined else row["kind"] == "insert" for row in by_key[key]]
        begin = begins.index(True) if True in begins else len(places)
        end = max((place for place, found in enumerate(places, 1) if found == version), default=0)
        for row in by_key[key][begin:end]:
            is_gone = row["kind"] in ("delete", "expire")
            replayed = None if is_gone else apply_delta(replayed, json.loads(row["value"]), row["removed"])
        if replayed != json.loads(record):
            wrong.append(key)
    return wrong


def main() -> None:
    """Take two snapshots and compare the second with the first and its deltas."""
    parser = argparse.ArgumentParser(description="A snapshot and the deltas after it, compared with a later snapshot.")
    parser.add_argument("--bootstrap", default="localhost:9092", help="where Kafka is")
    parser.add_argument("--topic", default="orders", help="the family's name")
    parser.add_argument("--wait", type=float, default=30, help="seconds between the snapshots")
    arguments = parser.parse_args()
    options = {"kafka.bootstrap.servers": arguments.bootstrap}
    with spark_session("late-joiner") as spark:
        earlier = deltas(spark, arguments.topic, options)
        before = snapshot(spark, arguments.topic, options)
        time.sleep(arguments.wait)
        after = snapshot(spark, arguments.topic, options)
        for key, rows in (by_key := deltas(spark, arguments.topic, options)).items():
            del rows[: len(earlier[key])]
        wrong = differing(before, after, by_key)
    sys.exit(f"{len(wrong)} of {len(after)} records differ: {wrong[:10]}" if wrong else 0)


if __name__ == "__main__":
    main()
