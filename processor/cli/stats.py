"""`sowstream stats`: counts the records of a SOW topic, and their bytes."""

from __future__ import annotations

import json

from processor.cli.output import AsJson, counted, data, inform, table
from processor.cli.progress import records_read
from processor.cli.settings import ConfigFile, ReaderBootstrap, ReaderTopic, reader_settings
from processor.wire.metadata import iso


def stats(
    topic: ReaderTopic, as_json: AsJson = False, config: ConfigFile = None, bootstrap: ReaderBootstrap = None
) -> None:
    """Print for each partition the number of records, their bytes, and the offsets that a snapshot goes through.

    The SOW topic is read once, with about a hundred bytes of memory for each key. Kafka compacts it in the background:
    many more offsets than records mean that compaction is behind.
    """
    from processor.tools.topic_stats import topic_stats  # noqa: PLC0415

    tree = reader_settings(config, bootstrap)
    with records_read(f"reading {topic}") as on_read:
        of_partitions = topic_stats(tree, topic, on_read=on_read)
    if as_json:
        for one in of_partitions:
            data(json.dumps(one._asdict()))
        return
    columns = ("partition", "records", "bytes", "largest", "offsets", "updated")
    table(columns, [[*map(str, one[:-1]), _time(one.updated_ms)] for one in of_partitions])
    totals = (
        counted(sum(one.records for one in of_partitions), "record"),
        counted(sum(one.record_bytes for one in of_partitions), "byte"),
        counted(sum(one.offsets for one in of_partitions), "offset"),
    )
    inform(f"{topic}: {', '.join(totals)}.")


def _time(ms: int | None) -> str:
    return "" if ms is None else f"{iso(ms)[:19]}+00:00"
