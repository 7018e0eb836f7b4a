"""`sowstream-spark init`: the files of a first pipeline, which work as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from processor.cli.output import data, inform
from processor.errors import ConfigurationError

PIPELINE: Final = """\
settings: sowstream.yaml
checkpoints: ./checkpoints                # any file system that Spark knows, as for each path below
spark: {spark.ui.enabled: "false"}
jobs:
  ingest_orders:                          # each JSON line of a new file becomes a delta; a null is no value
    {job: ingest, from: {format: json, path: ./incoming}, topic: orders, nulls: ignore, quarantine: ./quarantine}
  archive:                                # every record of Kafka, once
    {job: archive, topics: [orders], to: {format: parquet, path: ./archive}}
  book:                                   # the present orders
    {job: table, topic: orders, to: {format: parquet, path: ./book}, schema: "id LONG, item STRING, qty LONG"}
  history:                                # a row for each version of an order
    {job: table, topic: orders, kind: scd2, to: {format: parquet, path: ./history}}
  depth:                                  # a query, whose changed rows go to another topic
    {job: features, from: [orders], topic: depth, key: [item], every: 2s,
     schemas: {orders: "id LONG, item STRING, qty LONG"},
     sql: "SELECT item, sum(qty) AS qty FROM orders GROUP BY item"}
"""

SETTINGS: Final = """\
kafka: {{bootstrap.servers: "localhost:9092"}}
topic_prefix: "{0}."  # topics of its own, also on a Kafka where others have `orders`
topics:
  orders: {{key: [/id], partitions: 2}}
  depth: {{key: [/item], partitions: 2}}
"""
"""With the name of the directory."""

ORDERS: Final = """\
{"id": 1, "item": "tea", "qty": 3}
{"id": 2, "item": "coffee", "qty": 2}
{"id": 3, "item": "tea", "qty": 5}
"""

FILES: Final = {"pipeline.yaml": PIPELINE, "sowstream.yaml": SETTINGS, "incoming/orders.json": ORDERS}
"""The files by their path in the directory."""

_PREFIX_CHARS_MAX: Final = 40


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory; it is made if it is missing.")],
) -> None:
    """Write a first pipeline that works as it is: pipeline.yaml, sowstream.yaml and three orders in incoming/.

    The names of the files are printed. A file that exists is never changed: then nothing is written.
    """
    # Two pipelines on one Kafka have different topics, as their directories have different names.
    prefix = re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-")[:_PREFIX_CHARS_MAX] or "shop"
    files = {directory / name: text for name, text in FILES.items()}
    files[directory / "sowstream.yaml"] = SETTINGS.format(prefix)
    if present := [file for file in files if file.exists()]:
        raise ConfigurationError(f"{present[0]} exists already: nothing is written; name another directory")
    for file, text in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from None
        data(str(file))
    inform(f"Next: cd {directory}; sowstream up; and in a second terminal there: sowstream-spark run")
