"""Connects Spark to topics: reads SOW topics as tables, delta topics as streams, publishes DataFrames, and merges."""

from importlib import import_module
from typing import TYPE_CHECKING

try:
    import pyspark as _pyspark
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "spark_integration needs PySpark; install it with: pip install 'sowstream[spark]'", name="pyspark"
    ) from error
if int(_pyspark.__version__.partition(".")[0]) < 4:
    raise ImportError(
        f"spark_integration runs on PySpark 4.0, 4.1 and 4.2, and this is {_pyspark.__version__}; install "
        "'pyspark>=4.0,<=4.2.0', or submit to a Spark of such a version"
    )

if TYPE_CHECKING:
    from spark_integration.lag import LagListener
    from spark_integration.merge.batch.files import history_of
    from spark_integration.merge.batch.handover import hand_over
    from spark_integration.merge.batch.merge_batch import merge_batch
    from spark_integration.merge.batch.result import load_merged
    from spark_integration.merge.moves.backfill import backfill
    from spark_integration.merge.moves.handback import handback
    from spark_integration.merge.moves.reconcile import reconcile
    from spark_integration.merge.moves.run_merge import run_merge
    from spark_integration.merge.moves.takeover import takeover
    from spark_integration.merge.streaming.merge_counts import MergeListener
    from spark_integration.merge.streaming.merge_stream import merge_stream
    from spark_integration.publish.publish import delete_records, publish_deltas, publish_records
    from spark_integration.read.changes import read_changes, read_deltas, stream_changes
    from spark_integration.read.read_topics import read_sow, stream_deltas, stream_sow
    from spark_integration.read.schemas.schema import registry_schema, schema_file
    from spark_integration.read.source.data_source import register_source
    from spark_integration.read.view_batch import view_batch
    from spark_integration.session import spark_session
    from spark_integration.tables.upsert import read_snapshot, upsert_to
    from spark_integration.tables.versions import read_versions

_HOMES = {
    "LagListener": "lag",
    "MergeListener": "merge.streaming.merge_counts",
    "backfill": "merge.moves.backfill",
    "delete_records": "publish.publish",
    "hand_over": "merge.batch.handover",
    "handback": "merge.moves.handback",
    "history_of": "merge.batch.files",
    "load_merged": "merge.batch.result",
    "merge_batch": "merge.batch.merge_batch",
    "merge_stream": "merge.streaming.merge_stream",
    "publish_deltas": "publish.publish",
    "publish_records": "publish.publish",
    "read_changes": "read.changes",
    "read_deltas": "read.changes",
    "read_snapshot": "tables.upsert",
    "read_sow": "read.read_topics",
    "read_versions": "tables.versions",
    "reconcile": "merge.moves.reconcile",
    "register_source": "read.source.data_source",
    "registry_schema": "read.schemas.schema",
    "run_merge": "merge.moves.run_merge",
    "schema_file": "read.schemas.schema",
    "spark_session": "session",
    "stream_changes": "read.changes",
    "stream_deltas": "read.read_topics",
    "stream_sow": "read.read_topics",
    "takeover": "merge.moves.takeover",
    "upsert_to": "tables.upsert",
    "view_batch": "read.view_batch",
}

__all__ = [
    "LagListener",
    "MergeListener",
    "backfill",
    "delete_records",
    "hand_over",
    "handback",
    "history_of",
    "load_merged",
    "merge_batch",
    "merge_stream",
    "publish_deltas",
    "publish_records",
    "read_changes",
    "read_deltas",
    "read_snapshot",
    "read_sow",
    "read_versions",
    "reconcile",
    "register_source",
    "registry_schema",
    "run_merge",
    "schema_file",
    "spark_session",
    "stream_changes",
    "stream_deltas",
    "stream_sow",
    "takeover",
    "upsert_to",
    "view_batch",
]


def __getattr__(name: str) -> object:
    """Import a public name at its first use: importing all of them would slow down each Python worker of Spark."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
