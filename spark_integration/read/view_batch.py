"""Computes the rows of a view from SOW records, with the functions of the workers' stages on the executors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.builtin.view.stage_output import Contributions, join_key
from processor.codec import load_codec
from processor.errors import ConfigurationError, RecordRejected
from processor.filter import compile_filter
from processor.filter.aggregate import compile_aggregates, compile_fields, plain
from processor.filter.filter import metadata_of
from processor.filter.syntax_tree import JOINED_MARK
from processor.values.key_text import group_key
from spark_integration.foundation.arrow_records import HEADERS_DDL, records
from spark_integration.foundation.options import Options, with_connection
from spark_integration.foundation.settings import TopicSettings, topic_settings
from spark_integration.read.metadata_columns import is_live
from spark_integration.read.table_part import latest_records, read_latest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from processor.config import Config
    from processor.filter.aggregate import AggregateDefinition, FieldsDefinition
    from processor.record import Record, Value


PARTS_DDL: Final = "group binary, part binary"
"""The columns of contributions."""

ROWS_DDL: Final = "key binary, value binary"
"""The columns of rows."""

LEFT_DDL: Final = "key binary, keys array<binary>, fields binary"
"""The columns of the records of a join's underlying."""

RIGHT_DDL: Final = "join_key binary, key binary, fields binary"
"""The columns of the records of a joined topic."""

_PARTS: Final = pa.schema([("group", pa.binary()), ("part", pa.binary())])
_ROWS: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_LEFT: Final = pa.schema([("key", pa.binary()), ("keys", pa.list_(pa.binary())), ("fields", pa.binary())])
_RIGHT: Final = pa.schema([("join_key", pa.binary()), ("key", pa.binary()), ("fields", pa.binary())])


@dataclass(frozen=True)
class ViewTask:
    """A view's definition, pickled for the executors as plain values, and compiled there once."""

    underlying: TopicSettings
    """The settings of the records of the underlying."""
    rows: TopicSettings
    """The settings of the rows."""
    filter: str | None
    """The records that count; None: all."""
    group_by: Mapping[str, str] | None
    """The fields that make a group; None: the view has no groups."""
    fields: Mapping[str, str]
    """The expressions of the rows' fields."""
    having: str | None
    """The rows that the view has; None: all."""
    joins: tuple[tuple[TopicSettings, Mapping[str, str]], ...] = ()
    """The settings of each joined topic, and the pairs of fields that are equal."""
    joins_by_key: bool = False
    """True if the records of a join meet by their own keys."""

    def contributions(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the group and the contribution of each record that counts."""
        definition, written = self._aggregates(), Contributions()
        for batch in batches:
            groups, parts = [], []
            for record, partition, state in self._counting(batch):
                place = record.timestamp_ms, partition, record.offset
                try:
                    made = definition.contribution(state, place, metadata_of(record, self.underlying.family))
                except Exception:  # noqa: BLE001, S112 - a worker rejects a record on which a function fails
                    continue
                groups.append(group_key(made.group))
                parts += written.encode_many([made])
            yield _batch(_PARTS, groups, parts)

    def folded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows of contributions, which are sorted by group."""
        definition, written = self._aggregates(), Contributions()
        pairs = (
            pair
            for batch in batches
            for pair in zip(batch.column("group").to_pylist(), batch.column("part").to_pylist(), strict=True)
        )
        for key, parts in groupby(pairs, lambda pair: pair[0]):
            group = definition.new_group()
            for _, part in parts:
                [member] = written.decode_many([part])
                group.add(member)
            yield self._written([(key, definition.row(group))])

    def projected(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the row of each record that counts."""
        fields = compile_fields(self.fields)
        for batch in batches:
            rows = []
            for record, _, state in self._counting(batch):
                try:
                    rows.append((record.key or b"", fields.row(state, metadata_of(record, self.underlying.family))))
                except Exception:  # noqa: BLE001, S112 - a worker rejects a record on which a function fails
                    continue
            yield self._written(rows)

    def lefts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the records of the underlying, with their keys in each joined topic."""
        used = self._fields().members
        keys = [self._join_key(on) for _, on in self.joins]
        json = load_codec("json")
        for batch in batches:
            rows = [
                (record.key, [key(record, state) for key in keys], json.encode(_used(state, used)))
                for record, _, state in self._counting(batch)
            ]
            yield _batch(_LEFT, *(zip(*rows, strict=True) if rows else ([], [], [])))

    def rights(self, batches: Iterable[pa.RecordBatch], place: int) -> Iterator[pa.RecordBatch]:
        """Return the records of a joined topic, with their keys in the join."""
        settings, on = self.joins[place]
        used, key, json = (
            self._fields().joined_members(settings.family),
            self._join_key(on.values()),
            load_codec("json"),
        )
        for batch in batches:
            rows = [
                (key(record, state), record.key, json.encode(_used(state, used)))
                for record, _, state in _states(batch, settings)
            ]
            rows = [row for row in rows if row[0] is not None]
            yield _batch(_RIGHT, *(zip(*rows, strict=True) if rows else ([], [], [])))

    def joined(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows of records with their partners, in the columns `partner0` and so on."""
        fields, json = self._fields(), load_codec("json")
        for batch in batches:
            columns = [batch.column(f"partner{place}").to_pylist() for place in range(len(self.joins))]
            lefts = zip(batch.column("key").to_pylist(), batch.column("fields").to_pylist(), strict=True)
            rows = []
            for (key, left), partners in zip(lefts, zip(*columns, strict=True), strict=True):
                record = json.decode_own(left)
                for (settings, _), partner in zip(self.joins, partners, strict=True):
                    if partner is not None:
                        record[JOINED_MARK + settings.family] = json.decode_own(partner)
                rows.append((key, fields.row(record)))
            yield self._written(rows)

    def _join_key(self, pointers: Iterable[str]) -> Callable[[Record, Value], bytes | None]:
        """Return a function of a record and its value: its key in a join, None where it meets no record."""
        key = join_key(pointers)

        def of_record(record: Record, state: Value) -> bytes | None:
            text = key(state)
            if text is None or self.joins_by_key:
                return None if text is None else record.key
            return text.encode(errors="surrogatepass")

        return of_record

    def _aggregates(self) -> AggregateDefinition:
        return compile_aggregates(self.group_by or {}, self.fields, self.having)

    def _fields(self) -> FieldsDefinition:
        return compile_fields(self.fields, [settings.family for settings, _ in self.joins])

    def _counting(self, batch: pa.RecordBatch) -> Iterator[tuple[Record, int, Value]]:
        """Return the records that count, with partition and value."""
        selected = None if self.filter is None else compile_filter(self.filter)
        for record, partition, state in _states(batch, self.underlying):
            try:
                if selected is None or selected.matches(state, metadata_of(record, self.underlying.family)):
                    yield record, partition, state
            except Exception:  # noqa: BLE001, S112 - a worker rejects a record on which a function fails
                continue

    def _written(self, rows: Iterable[tuple[bytes, Value | None]]) -> pa.RecordBatch:
        """Write rows as the topic's message type does; None is no row, and one that is too large is left out."""
        codec, bytes_max = self.rows.codec(), self.rows.topic.max_record_bytes
        written = [(key, codec.encode(row)) for key, row in rows if row is not None]
        fitting = [(key, value) for key, value in written if len(value) <= bytes_max]
        return _batch(_ROWS, [key for key, _ in fitting], [value for _, value in fitting])


def _states(batch: pa.RecordBatch, settings: TopicSettings) -> Iterator[tuple[Record, int, Value]]:
    """Return the records that can be read, with partition and value."""
    codec = settings.codec(reads_only=True)
    for record, partition in zip(records(batch), batch.column("partition").to_pylist(), strict=True):
        try:
            state = codec.decode_own(record.value or b"")
        except RecordRejected:
            continue
        if isinstance(state, dict):
            yield record, partition, state


def _used(state: Value, members: Iterable[str]) -> dict[str, Value]:
    return {name: plain(state[name]) for name in members if name in state}


def _batch(schema: pa.Schema, *columns: Iterable[Any]) -> pa.RecordBatch:
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def view_batch(
    spark: SparkSession,
    view: str,
    *,
    config: str | Path | Config,
    records: Mapping[str, DataFrame] | None = None,
    options: Options | None = None,
) -> DataFrame:
    """Compute the rows of a view, the same as its workers write, byte for byte.

    Returns:
        One row per row of the view: `key` and `value`, as in its SOW topic.

    Args:
        spark: a session; with Spark's Kafka connector where topics are read.
        view: its name.
        config: the settings, as a file or loaded; the view's section is among them.
        records: SOW records of its inputs by topic, with the columns of Spark's Kafka source, such as an archive; of
            several records of a key the last one counts. None, and topics that are missing: the SOW topics themselves.
        options: options of Spark's Kafka source; needed where topics are read.

    Raises:
        ConfigurationError: the settings cannot be used, or have no such view.
    """
    from processor.config import load  # noqa: PLC0415 - on the driver only
    from processor.errors import unknown_name  # noqa: PLC0415

    loaded = load(Path(config), file_argument="config=FILE") if isinstance(config, str | Path) else config
    if view not in loaded.views:
        raise ConfigurationError(unknown_name("view", view, list(loaded.views)))
    section = loaded.views[view]
    inputs = {topic: topic_settings(topic, loaded, options=options) for topic in section.inputs}
    task = ViewTask(
        underlying=inputs[section.underlying],
        rows=topic_settings(view, loaded, options=options),
        filter=section.filter,
        group_by=section.group_by,
        fields=section.fields,
        having=section.having,
        joins=tuple((inputs[each.topic], each.on) for each in section.join),
        joins_by_key=section.join_method == "same_key",
    )
    frames = {
        topic: _latest(spark, settings, (records or {}).get(topic), options) for topic, settings in inputs.items()
    }
    underlying = frames[section.underlying]
    if section.kind == "projection":
        return underlying.mapInArrow(task.projected, ROWS_DDL)
    if section.kind == "aggregate":
        parts = underlying.mapInArrow(task.contributions, PARTS_DDL)
        return parts.repartition("group").sortWithinPartitions("group").mapInArrow(task.folded, ROWS_DDL)
    rows = underlying.mapInArrow(task.lefts, LEFT_DDL)
    for place, each in enumerate(section.join):
        rights = frames[each.topic].mapInArrow(partial(task.rights, place=place), RIGHT_DDL)
        # Of several partners with one key the one with the least key counts.
        partners = rights.groupBy("join_key").agg(F.min_by("fields", "key").alias(f"partner{place}"))
        rows = rows.join(partners, rows["keys"][place] == partners["join_key"], "left").drop("join_key")
    return rows.mapInArrow(task.joined, ROWS_DDL)


def _latest(
    spark: SparkSession, settings: TopicSettings, given: DataFrame | None, options: Options | None
) -> DataFrame:
    """Return the last SOW record of each live key."""
    if given is None:
        latest = read_latest(spark, settings, with_connection(options, settings.kafka))
    else:
        if "headers" not in given.columns:
            given = given.withColumn("headers", F.lit(None).cast(HEADERS_DDL))
        latest = latest_records(given)
    live = latest.where(is_live())
    return live.withColumn("timestamp_ms", F.unix_millis("timestamp"))
