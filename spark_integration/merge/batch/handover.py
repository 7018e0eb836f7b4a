"""Hands merged records over to workers, which go on behind the cut: no record left out, none merged twice.

Written in this order: deltas and dead letters, SOW records, marks; then the cut is committed as the offsets of the
workers' group. Until then no worker has anything to begin with, and what was written is the same each time: a
hand-over that died is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from processor.store.marks import POSITION_NAME
from processor.topics.family import Role
from spark_integration.merge.arrow_records import OUTGOING_DDL
from spark_integration.merge.batch.base import latest
from spark_integration.merge.batch.history import Offsets, all_of, read_topic
from spark_integration.merge.batch.repair import THERE, WANTED, Repair
from spark_integration.merge.topic_family import TopicFamily
from spark_integration.options import client_properties, sink_options

if TYPE_CHECKING:
    from spark_integration.merge.batch.result import Merged
    from spark_integration.options import Options

Mode: TypeAlias = Literal["bootstrap", "continue", "repair"]
"""`bootstrap`: there is no SOW yet. `continue`: the merge began with the SOW topic, where the workers stopped.
`repair`: the SOW topic is made what was merged."""

_RECORD: Final = ("partition", "key", "value", "headers")
_NTH: Final = "nth"


def hand_over(
    merged: Merged, *, options: Options, mode: Mode = "bootstrap", deltas: bool = False, cut: Offsets | None = None
) -> None:
    """Write what was merged to the topics, then let the workers begin at the cut.

    May be called again after it failed, with the same `merged` or with one of the same history, cut and `as_of`.

    Args:
        merged: what `merge_batch` made.
        options: of Spark's Kafka source and sink.
        mode: `bootstrap` refuses a SOW topic with other records, and a group that has been elsewhere. `continue` is for
            a merge with `base="sow"`, and refuses a group that has moved since. `repair` writes what differs from the
            SOW topic, with versions above those there, deletes what should not be there, and tells subscribers by
            deltas.
        deltas: write every delta of the history too, where it was merged with `deltas=True`; not in a repair. Without,
            subscribers see from a gap in the versions that they missed some.
        cut: where the workers begin, offset of each partition of the input topic; for a history that came from
            elsewhere.

    Raises:
        ConfigurationError: what there is forbids it; nothing was written.
        Stop: Kafka does not answer, or a worker has come in between: the cut is not committed.
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
        _HandOver(merged, family, options, mode).run(_cut_of(merged, cut), deltas=deltas)


class _HandOver:
    """One of them."""

    def __init__(self, merged: Merged, family: TopicFamily, options: Options, mode: Mode) -> None:
        self._merged, self._settings = merged, merged.settings
        self._family, self._options, self._mode = family, options, mode
        self._spark = merged.rows.sparkSession

    def run(self, cut: Offsets, *, deltas: bool) -> None:
        """Check, write, commit."""
        _refuse_topics(self._merged, self._family, cut)
        _refuse_group(self._merged, self._family, cut, self._mode)
        if self._mode == "repair":
            self._repair()
        else:
            self._go_on(deltas=deltas)
        self._write("mark", self._marks())
        # What workers wrote there holds no more; the cut says where they begin.
        self._write("mark", self._positions())
        self._family.refuse_members("one has come since this began, and the cut is not committed")
        self._family.admin.set_offsets(self._family.group, self._family.source, cut)

    def _go_on(self, *, deltas: bool) -> None:
        """Write what is not there yet."""
        is_new = self._mode == "bootstrap"
        # Of a key that nobody has heard of there is nothing to delete.
        records, there = self._merged.records if is_new else self._merged.of("sow"), self._there("sow")
        if there is not None:
            if is_new:
                self._refuse_others(there, records)
            records = _lacking(records, there)
        if deltas:
            self._write("delta", self._not_yet("delta"))
        self._write("dlq", self._not_yet("dlq"))
        self._write("sow", records)

    def _repair(self) -> None:
        """Compare the two states of the world, key by key."""
        there = latest(self._spark, self._settings, self._family, "sow", self._options).where("value IS NOT NULL")
        sides = [_side(there, THERE), _side(self._merged.of("sow"), WANTED)]
        keys = ["partition", "key"]
        both = sides[0].unionByName(sides[1]).repartition(*keys).sortWithinPartitions(*keys, "offset")
        changes = both.mapInArrow(Repair(self._settings), OUTGOING_DDL).persist(StorageLevel.DISK_ONLY)
        try:
            self._write("dlq", self._not_yet("dlq"))
            self._write("delta", changes.where("topic = 'delta'").drop("topic"))
            self._write("sow", changes.where("topic = 'sow'").drop("topic"))
        finally:
            changes.unpersist()

    def _refuse_others(self, there: DataFrame, records: DataFrame) -> None:
        other = _lacking(there, records).select("partition", "key").first()
        if other is not None:
            raise ConfigurationError(
                f"{self._settings.kafka_topic('sow')} is not empty, and has other records than were merged, such "
                f"as of key {bytes(other.key)!r:.100} in partition {other.partition}: mode='repair' makes it what was "
                "merged. After a hand-over that died, merge with the same `until` and `as_of`"
            )

    def _not_yet(self, role: Role) -> DataFrame:
        """What goes to a topic and is not there, in order."""
        rows, there = self._merged.of(role), self._all(role)
        if there is None:
            return rows
        # A join may shuffle; the deltas of a key have an order.
        numbered = rows.withColumn("number", F.monotonically_increasing_id())
        lacking = _lacking(_with_nth(numbered, "number"), _with_nth(there, "offset"), [*_RECORD, _NTH])
        return lacking.repartition("partition", "key").sortWithinPartitions("number").drop("number", _NTH)

    def _marks(self) -> DataFrame | None:
        """The marks that are not there yet or lower, the oldest first: of too many, a worker forgets the oldest."""
        marks = self._merged.marks
        if marks is None:
            return None
        wanted = marks.select(
            "partition",
            F.col("name").alias("key"),
            F.col("sequence").cast("string").cast("binary").alias("value"),
            "offset",
        )
        there = self._there("mark")
        if there is not None:
            there = there.where(F.col("value").isNotNull() & F.startswith(F.col("key"), F.lit(b"sequence/")))
            known = there.select("partition", "key", F.col("value").cast("string").cast("bigint").alias("known"))
            number = F.col("value").cast("string").cast("bigint")
            wanted = wanted.join(known, ["partition", "key"], "left").where(
                F.col("known").isNull() | (F.col("known") < number)
            )
        return (
            wanted.repartition("partition")
            .sortWithinPartitions("partition", "offset")
            .select("partition", "key", "value")
        )

    def _positions(self) -> DataFrame | None:
        """Tombstones of the input positions that workers left."""
        there = self._there("mark")
        if there is None:
            return None
        left = there.where((F.col("key") == F.lit(POSITION_NAME)) & F.col("value").isNotNull())
        return left.select("partition", "key", F.lit(None).cast("binary").alias("value"))

    def _there(self, role: Role) -> DataFrame | None:
        """The last record of every key on a topic; None where it has no record at all."""
        return self._unless_empty(role, lambda: latest(self._spark, self._settings, self._family, role, self._options))

    def _all(self, role: Role) -> DataFrame | None:
        """Every record of a topic; None where there is none."""
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
            chosen = sink_options(self._settings.name, role, self._options, self._settings.names)
            rows.write.format("kafka").options(**chosen).save()


def _cut_of(merged: Merged, cut: Offsets | None) -> Offsets:
    """Where the workers begin: where the merge ended, or for a history from elsewhere what was given.

    Raises:
        ConfigurationError: nothing says it, or two things do.
    """
    if (merged.cut is None) == (cut is None):
        raise ConfigurationError(
            "the history came from elsewhere: say with `cut` where the workers begin, offset of each partition of the "
            "input topic"
            if cut is None
            else "the cut is where the merge ended, and cannot be another one; leave `cut` out"
        )
    found = merged.cut if cut is None else cut
    assert found is not None
    return found


def _refuse_topics(merged: Merged, family: TopicFamily, cut: Offsets) -> None:
    """Make sure that every topic is there, with the same partitions, and the input from the cut on.

    Raises:
        ConfigurationError: one is not.
    """
    wanted = merged.settings.topic.partitions
    roles: tuple[Role, ...] = ("publish", "sow", "delta", "mark", "dlq")
    for role in roles:
        found = family.partitions(role)
        if found != wanted:
            raise ConfigurationError(
                f"{merged.settings.kafka_topic(role)} has {found} partitions, the settings say {wanted}: keys "
                "would lie elsewhere than workers look; mend the settings, or make the topics anew"
            )
    bounds = family.bounds("publish", wanted)
    for partition, offset in all_of("cut", cut, wanted).items():
        begin, end = bounds.begins[partition], bounds.ends[partition]
        if not begin <= offset <= end:
            why = "what lies between is gone" if offset < begin else "so it is of another topic"
            raise ConfigurationError(
                f"partition {partition}: the cut is at offset {offset}, and the input topic has {begin} to {end}: "
                f"{why}; merge again"
            )


def _refuse_group(merged: Merged, family: TopicFamily, cut: Offsets, mode: Mode) -> None:
    """Make sure that the workers' group is empty, and where the mode wants it.

    Raises:
        ConfigurationError: it is not.
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


def _first(offsets: dict[int, int]) -> str:
    partition = min(offsets)
    return f"such as {offsets[partition]} in partition {partition}"


def _lacking(rows: DataFrame, others: DataFrame, columns: Sequence[str] = _RECORD) -> DataFrame:
    """Rows that are not among others, as records; values and keys may be null."""
    left, right = rows.alias("l"), others.select(*columns).alias("r")
    same = [F.col(f"l.{name}").eqNullSafe(F.col(f"r.{name}")) for name in columns]
    return left.join(right, same, "left_anti")


def _with_nth(rows: DataFrame, order: str) -> DataFrame:
    """Rows with how many there are of each up to it: a key that is deleted and comes again may tell the same twice."""
    return rows.withColumn(_NTH, F.row_number().over(Window.partitionBy(*_RECORD).orderBy(order)))


def _side(records: DataFrame, side: int) -> DataFrame:
    return records.select(
        *_RECORD, F.lit(side).cast("bigint").alias("offset"), F.lit(0).cast("bigint").alias("timestamp_ms")
    )
