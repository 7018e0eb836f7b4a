"""Hands merged records over to workers, which continue after the cut: no record is lost, none merged twice.

The order of writing is:

1. input positions of Spark, by which workers hold their partitions, and `merge_batch(base="sow")` refuses the topic:
   from here on the SOW topic is half written, and no offset says which input it has;
2. deltas and dead letters, SOW records, marks;
3. input positions of the workers at the cut, then the cut as the offsets of their group.

Each attempt with the same result writes the same records, so a failed hand-over can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError, Stop
from processor.store.marks import POSITION_NAME
from processor.topics.family import Role
from processor.wire.partition_marks import (
    HALF_WRITTEN,
    LIVES_NAME,
    InputPosition,
    LivesMark,
    highest_version,
    mark_above,
)
from processor.wire.publisher_mark import WORDS_HEADER
from spark_integration.foundation.arrow_records import HEADERS_DDL, OUTGOING_DDL
from spark_integration.foundation.options import client_properties, sink_options, with_connection
from spark_integration.merge.batch.base_state import PartitionMarks, latest, partition_marks, publishers_marks, used_in
from spark_integration.merge.batch.history import Offsets, all_of, read_topic, without_nulls
from spark_integration.merge.batch.repair import THERE, WANTED, Repair
from spark_integration.merge.topic_family import TopicFamily, sparks_id

if TYPE_CHECKING:
    from spark_integration.foundation.options import Options
    from spark_integration.merge.batch.result import Merged

Mode: TypeAlias = Literal["bootstrap", "continue", "repair"]
"""`bootstrap`: the SOW topic is empty. `continue`: the merge began with the SOW topic, at the workers' offsets.
`repair`: the SOW topic is changed to the merged records."""

_RECORD: Final = ("partition", "key", "value", "headers")
_MARKS_DDL: Final = "partition int, key binary, value binary"
_NTH: Final = "nth"


def hand_over(
    merged: Merged, *, options: Options, mode: Mode = "bootstrap", deltas: bool = False, cut: Offsets | None = None
) -> None:
    """Write merged records to the topics, then commit the cut, so that workers can begin there.

    After a failure it may be called again, with the same `merged` or with one of the same history, cut and `as_of`; in
    `continue` only with the same `merged`, or as it was saved, since its base is no longer on the topic.

    Args:
        merged: the result of `merge_batch`.
        options: of Spark's Kafka source and sink.
        mode: `bootstrap` refuses a SOW topic with other records, and a group with other offsets. `continue` is for a
            merge with `base="sow"`, and refuses a group that has moved since. `repair` writes the records that differ
            from the SOW topic, with higher versions, deletes the surplus ones, and publishes deltas for both.
        deltas: write every delta of the history too, where it was merged with `deltas=True`; not in a repair. Without
            them, subscribers notice a gap in the versions.
        cut: the first offset of each partition of the input topic for the workers; only for a history from elsewhere.

    Raises:
        ConfigurationError: the topics or the group do not allow it; nothing was written.
        Stop: Kafka does not answer, or a worker has joined meanwhile: the cut is not committed.
    """
    if mode not in get_args(Mode):
        raise ConfigurationError(f"mode={mode!r}: say one of {', '.join(get_args(Mode))}")
    if deltas and (mode == "repair" or not merged.has_deltas):
        raise ConfigurationError(
            "deltas=True: a repair tells by deltas of its own what it changes; leave it out"
            if mode == "repair"
            else "deltas=True, but they were not kept: merge_batch(…, deltas=True)"
        )
    with TopicFamily(merged.settings, client_properties(merged.settings.kafka, options)) as family:
        family.refuse_fenced("a hand-over to its workers is not possible now")
        connected = with_connection(options, merged.settings.kafka)
        _HandOver(merged, family, connected, mode).run(_cut_of(merged, cut), deltas=deltas)


def replace_records(merged: Merged, *, options: Options, cut: Offsets) -> None:
    """Do the same as `hand_over(mode="repair")` behind a fence, which the caller has raised.

    Raises:
        ConfigurationError: the topics or the group do not allow it; nothing was written.
        Stop: Kafka does not answer, or a worker has joined meanwhile: the cut is not committed.
    """
    with TopicFamily(merged.settings, client_properties(merged.settings.kafka, options)) as family:
        connected = with_connection(options, merged.settings.kafka)
        _HandOver(merged, family, connected, "repair").run(_cut_of(merged, cut), deltas=False)


class _HandOver:
    """One hand-over."""

    def __init__(self, merged: Merged, family: TopicFamily, options: Options, mode: Mode) -> None:
        self._merged, self._settings = merged, merged.settings
        self._family, self._options, self._mode = family, options, mode
        self._spark = merged.rows.sparkSession

    def run(self, cut: Offsets, *, deltas: bool) -> None:
        """Check the topics and the group, write the records, commit the cut."""
        _refuse_topics(self._merged, self._family, cut)
        _refuse_group(self._merged, self._family, cut, self._mode)
        there, topic_id = self._there("mark"), self._family.admin.topic_id(self._family.source)
        marks = PartitionMarks({}, {}) if there is None else partition_marks(there)
        positions = {number: InputPosition(self._settings.application_id, topic_id, at) for number, at in cut.items()}
        used, merged = self._used(marks.lives, topic_id), used_in(self._merged.of("sow"))
        with ExitStack() as kept:
            if self._mode == "repair":
                used, records = self._differences(used, merged, kept)
            else:
                records = self._missing(deltas=deltas)
            lives = self._lives(marks.lives, _largest(used, merged), topic_id, cut)
            is_same = marks.positions == positions and all(map(_is_empty, (*records.values(), lives)))
            if is_same and _is_empty(self._marks()):
                positions = {}  # All was written before.
            self._write_positions(positions, is_half_written=True)
            for role, rows in records.items():
                self._write(role, rows)
        self._write("mark", lives)
        self._write("mark", self._marks())
        try:
            self._family.refuse_members("one has come since this began, and the cut is not committed")
        except ConfigurationError as error:
            raise Stop(str(error)) from None
        self._write_positions(positions)
        self._family.admin.set_offsets(self._family.group, self._family.source, cut)

    def _missing(self, *, deltas: bool) -> dict[Role, DataFrame]:
        """The records that the topics lack, in the order of writing."""
        is_new = self._mode == "bootstrap"
        # No subscriber knows the keys of a new topic, so tombstones are not needed.
        records, there = self._merged.records if is_new else self._merged.of("sow"), self._there("sow")
        if there is not None:
            if is_new:
                self._refuse_others(there, records)
            records = _lacking(records, there)
        first: dict[Role, DataFrame] = {"delta": self._not_yet("delta")} if deltas else {}
        return {**first, "dlq": self._not_yet("dlq"), "sow": records}

    def _differences(
        self, used: Mapping[int, int], merged: Mapping[int, int], kept: ExitStack
    ) -> tuple[dict[int, int], dict[Role, DataFrame]]:
        """The differences between the SOW topic and the merged records, key by key, in the order of writing.

        Args:
            used: the highest version used in each partition, apart from the topic's records.
            merged: the highest version of the merged records in each partition.
            kept: ends when they are written.

        Returns:
            The first with the records that are there, and those to write; and these.
        """
        there = latest(self._spark, self._settings, self._family, "sow", self._options)
        used = _largest(used, used_in(there))
        sides = [_side(there.where("value IS NOT NULL"), THERE), _side(self._merged.of("sow"), WANTED)]
        keys = ["partition", "key"]
        both = sides[0].unionByName(sides[1]).repartition(*keys).sortWithinPartitions(*keys, "offset")
        # A partition without any version is new: its records have those of the merge, as a worker would write them.
        floors = {number: max(version, merged.get(number, 0)) for number, version in used.items() if version}
        changes = both.mapInArrow(Repair(self._settings, floors), OUTGOING_DDL).persist(StorageLevel.DISK_ONLY)
        kept.callback(changes.unpersist)
        records = changes.where("topic = 'sow'").drop("topic")
        deltas = changes.where("topic = 'delta'").drop("topic")
        return _largest(used, used_in(records)), {"dlq": self._not_yet("dlq"), "delta": deltas, "sow": records}

    def _refuse_others(self, there: DataFrame, records: DataFrame) -> None:
        other = _lacking(there, records).select("partition", "key").first()
        if other is not None:
            raise ConfigurationError(
                f"{self._settings.kafka_topic('sow')} is not empty, and has other records than were merged, such "
                f"as of key {bytes(other.key)!r:.100} in partition {other.partition}: mode='repair' makes it what was "
                "merged. After a hand-over that died, merge with the same `until` and `as_of`"
            )

    def _not_yet(self, role: Role) -> DataFrame:
        """The merged records that a topic lacks, in order."""
        rows, there = self._merged.of(role), self._all(role)
        if there is None:
            return rows
        # A join may shuffle; the deltas of a key have an order.
        numbered = rows.withColumn("number", F.monotonically_increasing_id())
        lacking = _lacking(_with_nth(numbered, "number"), _with_nth(there, "offset"), [*_RECORD, _NTH])
        return lacking.repartition("partition", "key").sortWithinPartitions("number").drop("number", _NTH)

    def _marks(self) -> DataFrame | None:
        """The marks that the topic lacks or has lower, the oldest first, as a worker forgets the oldest of too many."""
        wanted = self._merged.marks
        if wanted is None:
            return None
        there = self._there("mark")
        if there is not None:
            on_topic = publishers_marks(there).withColumnRenamed("mark", "known")
            known, number = _words_of("known")[0].cast("bigint"), _words_of("mark")[0].cast("bigint")
            is_other = (known == number) & (F.col("known") != F.col("mark"))
            wanted = wanted.join(on_topic, ["partition", "name"], "left").where(
                F.col("known").isNull() | (known < number) | is_other
            )
        value, words = _words_of("mark")[0], F.try_element_at(_words_of("mark"), F.lit(2))
        header = F.struct(F.lit(WORDS_HEADER).alias("key"), words.cast("binary").alias("value"))
        return (
            wanted.repartition("partition")
            .sortWithinPartitions("partition", "offset")
            .select(
                "partition",
                F.col("name").alias("key"),
                value.cast("binary").alias("value"),
                F.when(words.isNotNull(), F.array(header)).otherwise(F.array().cast(HEADERS_DDL)).alias("headers"),
            )
        )

    def _used(self, marks: Mapping[int, LivesMark], topic_id: str) -> dict[int, int]:
        """The highest version that workers may have used in each partition."""
        committed = self._family.committed(self._settings.topic.partitions)
        numbers = marks.keys() | committed.keys()
        return {number: highest_version(marks.get(number), topic_id, committed.get(number, 0)) for number in numbers}

    def _lives(
        self, marks: Mapping[int, LivesMark], used: Mapping[int, int], topic_id: str, cut: Offsets
    ) -> DataFrame | None:
        """The marks with which workers begin lives above all versions; None where those that are there do."""
        rows = []
        for number, begin in dict(cut).items():
            before = marks.get(number)
            mark = mark_above(used.get(number, 0), topic_id, begin, before)
            # Without one, a worker begins with a base of 0.
            if mark.base > (0 if before is None else before.base) or (before and before.topic_id != topic_id):
                rows.append((number, LIVES_NAME, bytes(mark)))
        return self._spark.createDataFrame(rows, _MARKS_DDL) if rows else None

    def _write_positions(self, positions: Mapping[int, InputPosition], *, is_half_written: bool = False) -> None:
        """Write input positions; those of Spark where the SOW topic is about to be half written."""
        if is_half_written:
            spark = sparks_id(self._settings)
            positions = {
                number: position._replace(application_id=spark, note=HALF_WRITTEN)
                for number, position in positions.items()
            }
        rows = [(number, POSITION_NAME, bytes(position)) for number, position in positions.items()]
        self._write("mark", self._spark.createDataFrame(rows, _MARKS_DDL) if rows else None)

    def _there(self, role: Role) -> DataFrame | None:
        """The last record of every key on a topic; None for an empty topic."""
        return self._unless_empty(role, lambda: latest(self._spark, self._settings, self._family, role, self._options))

    def _all(self, role: Role) -> DataFrame | None:
        """Every record of a topic; None for an empty topic."""
        return self._unless_empty(
            role,
            lambda: read_topic(
                self._spark,
                self._settings,
                role,
                self._family.bounds(role, self._settings.topic.partitions),
                self._options,
            ),
        )

    def _unless_empty(self, role: Role, read: Callable[[], DataFrame]) -> DataFrame | None:
        bounds = self._family.bounds(role, self._settings.topic.partitions)
        return None if bounds.begins == bounds.ends else read()

    def _write(self, role: Role, rows: DataFrame | None) -> None:
        if rows is not None:
            kafka_options = sink_options(self._settings.name, role, self._options, self._settings.names)
            rows.write.format("kafka").options(**kafka_options).save()


def _cut_of(merged: Merged, cut: Offsets | None) -> Offsets:
    """The first offsets for the workers: the end of the merge, or `cut` for a history from elsewhere.

    Raises:
        ConfigurationError: both or neither are known.
    """
    if (merged.cut is None) == (cut is None):
        raise ConfigurationError(
            "the history came from elsewhere: say with `cut` where the workers begin, offset of each partition of the "
            "input topic"
            if cut is None
            else "the cut is where the merge ended, and cannot be another one; leave `cut` out"
        )
    offsets = merged.cut if cut is None else cut
    assert offsets is not None
    return offsets


def _refuse_topics(merged: Merged, family: TopicFamily, cut: Offsets) -> None:
    """Make sure that every topic exists, with the same partitions, and that the input topic has the cut.

    Raises:
        ConfigurationError: a topic or its partitions or offsets are missing.
    """
    expected = merged.settings.topic.partitions
    roles: tuple[Role, ...] = ("publish", "sow", "delta", "mark", "dlq")
    for role in roles:
        count = family.partitions(role)
        if count != expected:
            raise ConfigurationError(
                f"{merged.settings.kafka_topic(role)} has {count} partitions, the settings say {expected}: keys "
                "would lie elsewhere than workers look; mend the settings, or make the topics anew"
            )
    bounds = family.bounds("publish", expected)
    for partition, offset in all_of("cut", cut, expected).items():
        begin, end = bounds.begins[partition], bounds.ends[partition]
        if not begin <= offset <= end:
            why = "what lies between is gone" if offset < begin else "so it is of another topic"
            raise ConfigurationError(
                f"partition {partition}: the cut is at offset {offset}, and the input topic has {begin} to {end}: "
                f"{why}; merge again"
            )


def _refuse_group(merged: Merged, family: TopicFamily, cut: Offsets, mode: Mode) -> None:
    """Make sure that the workers' group is empty, at offsets that the mode allows.

    Raises:
        ConfigurationError: it has members or other offsets.
    """
    family.refuse_members("two would write the same records")
    committed = family.committed(merged.settings.topic.partitions)
    if mode == "bootstrap" and committed and committed != dict(cut):
        raise ConfigurationError(
            f"the group {family.group} has offsets already, {_first(committed)}, and the cut is at "
            f"{_first(dict(cut))}: workers have been here. mode='continue' goes on with their records after "
            "merge_batch(…, base='sow'), mode='repair' makes their SOW topic what was merged"
        )
    if mode == "continue":
        bounds = merged.bounds
        if bounds is None or not merged.has_base:
            raise ConfigurationError(
                "mode='continue' goes on with a SOW topic: merge_batch(…, base='sow') begins there"
            )
        if bounds.begins | committed not in (bounds.begins, dict(cut)):
            raise ConfigurationError(
                f"the group {family.group} has moved to {_first(committed)} since the SOW topic was read: merge again"
            )


def _words_of(mark: str) -> Column:
    """The number of a mark's text and, behind it, all of its words."""
    return F.split(F.col(mark).cast("string"), " ", 2)


def _first(offsets: dict[int, int]) -> str:
    partition = min(offsets)
    return f"such as {offsets[partition]} in partition {partition}"


def _is_empty(rows: DataFrame | None) -> bool:
    return rows is None or rows.isEmpty()


def _lacking(rows: DataFrame, others: DataFrame, columns: Sequence[str] = _RECORD) -> DataFrame:
    """The rows that are not among the others, compared as records; values and keys may be null."""
    left, right = rows.alias("l"), others.select(*columns).alias("r")
    same = [F.col(f"l.{name}").eqNullSafe(F.col(f"r.{name}")) for name in columns]
    return left.join(right, same, "left_anti")


def _with_nth(rows: DataFrame, order: str) -> DataFrame:
    """Number equal rows: a key that is deleted and inserted again may have equal deltas."""
    return rows.withColumn(_NTH, F.row_number().over(Window.partitionBy(*_RECORD).orderBy(order)))


def _largest(some: Mapping[int, int], others: Mapping[int, int]) -> dict[int, int]:
    """The larger number of each partition."""
    return {number: max(some.get(number, 0), others.get(number, 0)) for number in some.keys() | others.keys()}


def _side(records: DataFrame, side: int) -> DataFrame:
    return records.withColumn("headers", without_nulls(F.col("headers"))).select(
        *_RECORD, F.lit(side).cast("bigint").alias("offset"), F.lit(0).cast("bigint").alias("timestamp_ms")
    )
