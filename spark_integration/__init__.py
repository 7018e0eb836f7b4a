"""Spark and the topics: SOW topics as tables, delta topics as streams, DataFrames as deltas; merging on Spark."""

from importlib import import_module
from typing import TYPE_CHECKING

try:
    import pyspark as _pyspark  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "spark_integration needs PySpark; install it with: pip install 'sowstream[spark]'", name="pyspark"
    ) from error

if TYPE_CHECKING:
    from spark_integration.lag import LagListener
    from spark_integration.merge.batch import merge_batch
    from spark_integration.merge.files import history_of
    from spark_integration.merge.handover import hand_over
    from spark_integration.merge.stream import merge_stream
    from spark_integration.publish import delete_records, publish_deltas, publish_records
    from spark_integration.read import read_sow
    from spark_integration.schema import registry_schema, schema_file
    from spark_integration.session import spark_session
    from spark_integration.source import register
    from spark_integration.stream import stream_deltas, stream_sow
    from spark_integration.upsert import read_snapshot, upsert_to

_HOMES = {
    "LagListener": "lag",
    "delete_records": "publish",
    "hand_over": "merge.handover",
    "history_of": "merge.files",
    "merge_batch": "merge.batch",
    "merge_stream": "merge.stream",
    "publish_deltas": "publish",
    "publish_records": "publish",
    "read_snapshot": "upsert",
    "read_sow": "read",
    "register": "source",
    "registry_schema": "schema",
    "schema_file": "schema",
    "spark_session": "session",
    "stream_deltas": "stream",
    "stream_sow": "stream",
    "upsert_to": "upsert",
}

__all__ = [
    "LagListener",
    "delete_records",
    "hand_over",
    "history_of",
    "merge_batch",
    "merge_stream",
    "publish_deltas",
    "publish_records",
    "read_snapshot",
    "read_sow",
    "register",
    "registry_schema",
    "schema_file",
    "spark_session",
    "stream_deltas",
    "stream_sow",
    "upsert_to",
]


def __getattr__(name: str) -> object:
    """Import what is asked for, and nothing else: each of Spark's Python workers would pay for all of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
