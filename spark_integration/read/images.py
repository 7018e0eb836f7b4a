"""Makes the images of changes from SOW records: the record after each change, and the one before it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from processor.errors import ConfigurationError
from spark_integration.foundation.plain_pickle import load_plain
from spark_integration.foundation.pyspark_private import refuse_without_state
from spark_integration.foundation.sql import Sql, aliased
from spark_integration.read.metadata_columns import kind_of_update

if TYPE_CHECKING:
    import pandas as pd

Images: TypeAlias = Literal["delta", "post", "pre_post"]
"""The rows of a change: its delta, the record after it, or the record before and the record after."""

IMAGE: Final = "image"
"""The metadata column with the image that a row is: `delta`, `pre` or `post`."""

_HEADERS: Final = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
_COLUMNS: Final = f"key BINARY, partition INT, offset LONG, timestamp TIMESTAMP, kind STRING, headers {_HEADERS}"
_ROWS: Final = f"{_COLUMNS}, image STRING, value BINARY, value_headers {_HEADERS}"
"""The columns of images: those of Spark's Kafka source describe the change, the last two are the record."""

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def check_images(images: Images) -> None:
    """Refuse an `images` argument with another value.

    Raises:
        ConfigurationError: it is none of the three.
    """
    if images not in get_args(Images):
        raise ConfigurationError(f"images={images!r}: say one of {', '.join(get_args(Images))}")


def post_images(records: DataFrame) -> DataFrame:
    """The record after each change; a deleted one is null."""
    return _without_null_headers(records).selectExpr(
        *_described(), f"'post' AS {IMAGE}", "value", "headers AS value_headers"
    )


def with_pre_images(records: DataFrame, begins: Mapping[int, int]) -> DataFrame:
    """The record before and the record after each change; an insert has none before, a delete none after.

    Args:
        records: rows of Spark's Kafka source, from the oldest record on.
        begins: the offset of each partition from which changes are rows; earlier records are predecessors only.
    """
    before = "lag(struct(value, headers AS value_headers)) OVER (PARTITION BY key, partition ORDER BY offset) AS before"
    changes = _without_null_headers(records).selectExpr(*_described(), "value", before).where(_is_from(begins))
    after = f"struct('post' AS {IMAGE}, value, headers AS value_headers)"
    pre = f"struct('pre' AS {IMAGE}, before.value AS value, before.value_headers AS value_headers)"
    images = f"filter(array({pre}, {after}), image -> image.value IS NOT NULL)"
    return changes.selectExpr(*_names(), f"inline({images})")


def stream_with_pre_images(spark: SparkSession, records: DataFrame) -> DataFrame:
    """`with_pre_images` of a stream that begins with the oldest record; the last record of each key is its state.

    Raises:
        ConfigurationError: the session keeps state in a way that cannot hold it.
    """
    refuse_without_state(spark, "a stream with images='pre_post'")
    provider = spark.conf.get(_PROVIDER) or ""
    if not provider.endswith("RocksDBStateStoreProvider"):
        raise ConfigurationError(
            f"images='pre_post' keeps the last record of each key in Spark's state, which {provider} cannot: set "
            f"{_PROVIDER}={_ROCKSDB} on the session before"
        )
    rows = _without_null_headers(records).selectExpr(*_described(), "value")
    return rows.groupBy("partition", "key").transformWithStateInPandas(
        PreImages(), outputStructType=_ROWS, outputMode="append", timeMode="None"
    )


class _Image(NamedTuple):
    """A record, in the state of its key."""

    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class PreImages(StatefulProcessor):
    """Adds the record before to each change of one key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: the last record."""
        self._last = handle.getValueState("last", "record BINARY")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,  # noqa: ARG002
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        """The images of the changes of a micro-batch, in the order of the topic."""
        import pandas as pd  # noqa: PLC0415 - needed here, on an executor

        before: _Image | None = None
        if (last := self._last.get()) is not None:
            before = _Image(*load_plain(bytes(last[0]), "a record before its change"))
        images: list[dict[str, Any]] = []
        for change in pd.concat(list(rows)).sort_values("offset").to_dict("records"):
            value = change.pop("value")
            after = _Image(None if value is None else bytes(value), list(_pairs(change["headers"])))
            for name, image in (("pre", before), ("post", after)):
                if image is not None and image.value is not None:
                    images.append({**change, IMAGE: name, "value": image.value, "value_headers": _structs(image)})
            before = after
        if before is not None:
            self._last.update((pickle.dumps(tuple(before)),))
        yield pd.DataFrame(images, columns=[*_names(), IMAGE, "value", "value_headers"])

    def close(self) -> None:
        """Nothing is open."""


def _pairs(headers: Any) -> Iterator[tuple[str, bytes | None]]:
    for header in headers:
        yield header["key"], None if header["value"] is None else bytes(header["value"])


def _structs(image: _Image) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in image.headers]


def _without_null_headers(records: DataFrame) -> DataFrame:
    """Spark is slow to convert null lists to Arrow."""
    return records.withColumn("headers", F.expr(f"coalesce(headers, CAST(array() AS {_HEADERS}))"))


def _described() -> list[Sql]:
    return [aliased(name, kind_of_update()) if name == "kind" else name for name in _names()]


def _names() -> list[str]:
    return [column.split()[0] for column in _COLUMNS.split(", ")[:6]]


def _is_from(begins: Mapping[int, int]) -> Sql:
    return " OR ".join(f"partition = {partition} AND offset >= {begin}" for partition, begin in begins.items())
