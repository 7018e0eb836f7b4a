"""The sections of topics that Sowstream makes of other topics: views and queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from processor.config.section import IntervalS, KafkaTopics, Properties, Section, TopicName
from processor.config.topic import EXPLICIT_KEY, TopicConfig
from processor.values.pointer import names, nested

SPLIT: Final = "split"
"""The stage of a view that reads the records of one topic and sends the parts that matter to the next stage."""

JOIN: Final = "join"
"""The stage of a join in which the records of both sides meet."""

_Key: TypeAlias = tuple[tuple[str, ...], bool]


def _pointers(value: object) -> object:
    """Read a list of paths as fields that keep their names."""
    if isinstance(value, str):
        value = [value]
    return {path: path for path in value} if isinstance(value, list | tuple) else value


class JoinConfig(Section):
    """One joined topic of a view."""

    topic: TopicName
    """The topic whose records are looked up."""
    on: dict[str, str] = Field(min_length=1, max_length=16)
    """Pairs of fields that must be equal: the underlying's and the joined topic's, as JSON Pointers. 1 and 1.0 are
    equal, 1 and "1" are not."""

    @model_validator(mode="before")
    @classmethod
    def _on_is_a_name(cls, value: object) -> object:
        """Read the name `on` of a YAML file: YAML 1.1 takes it for true, of which Helm makes the text."""
        if not isinstance(value, dict):
            return value
        return {"on" if name is True or name == "true" else name: each for name, each in value.items()}

    @field_validator("on")
    @classmethod
    def _on_is_pointers(cls, value: dict[str, str]) -> dict[str, str]:
        for path in (*value, *value.values()):
            _check_pointer("on", path)
        return value


class ViewConfig(Section):
    """One view: `views.<name>`."""

    underlying: TopicName
    """The topic whose records it is computed of: a topic, a conflated topic, another view, or a plug-in's topic."""
    filter: str | None = None
    """The records that count, in the filter language; none: all records."""
    group_by: Annotated[dict[str, str] | None, BeforeValidator(_pointers)] = None
    """The fields that make a group, as JSON Pointers, which are the key fields of the view: a list, or a mapping to
    their names in the view. An empty list makes one group of all records. None: the view has no groups."""
    join: tuple[JoinConfig, ...] = ()
    """The topics whose records are joined to those of the underlying."""
    join_method: Literal["auto", "same_key", "broadcast", "repartition"] = "auto"
    """The way in which the records of a join meet. `same_key`: by their keys, where `on` names all key fields of both
    sides in their order, and both have groups or neither has; `repartition`: by any fields, through two more topics;
    `auto` takes the first where it can. `broadcast`: by any fields, with the joined topics, which are small, in each
    partition of the view."""
    fields: dict[str, str] = Field(min_length=1)
    """The fields of its rows: an expression of the filter language for each JSON Pointer."""
    having: str | None = None
    """The rows that the view has, as a filter over its fields; none: all rows."""
    partitions: int | None = Field(default=None, ge=1, le=10_000)
    """Partitions of every topic of the view; none: as many as the underlying has."""
    as_of: bool = False
    """Add the header `as_of`, with the offsets of the input that a row reflects, to SOW and delta records."""
    partial_aggregation: bool | None = None
    """Aggregate each partition of the input by itself first, and send the partial aggregates alone (`COUNT`, `SUM`,
    `AVG`, `MIN`, `MAX` and standard deviations), or send a part for each record. None: as the view was built; a new one
    aggregates first if that needs no parsing of records."""
    max_record_bytes: int = Field(default=1_048_576, ge=1, le=10_485_760)
    """Largest row."""
    config: Properties = Field(default_factory=dict)
    """Kafka topic settings for every topic of the view, such as `min.insync.replicas`."""
    kafka_topics: KafkaTopics = Field(default_factory=dict)
    """Kafka topics of the family that have names of their own, by role, such as `sow: existing.name`; the others
    are `<topic_prefix><name>.<role>`."""
    _members_of: dict[str, frozenset[str]] = PrivateAttr(default_factory=dict)

    @field_validator("group_by")
    @classmethod
    def _groups_are_pointers(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for path in (*(value or {}), *(value or {}).values()):
            _check_pointer("group_by", path)
        if value is not None and len(set(value.values())) < len(value):
            raise ValueError("group_by gives two fields the same name")
        return value

    @field_validator("fields")
    @classmethod
    def _fields_are_pointers(cls, value: dict[str, str]) -> dict[str, str]:
        for path in value:
            _check_pointer("fields", path)
        return value

    @model_validator(mode="after")
    def _kind_is_one(self) -> ViewConfig:
        if not self.join and self.join_method != "auto":
            raise ValueError("join_method is for views with `join`; remove it")
        if self.join and self.group_by is not None:
            raise ValueError("join and group_by in one view: make a view of the join, and a view with groups over it")
        if self.kind == "projection" and self.partitions is not None:
            raise ValueError("a projection has the partitions of its underlying; remove `partitions`")
        if pair := nested(map(names, (*(self.group_by or {}).values(), *self.fields))):
            raise ValueError(f"fields: {pair[0]} lies inside {pair[1]}; remove one of the two")
        if self.having is not None and self.group_by is None:
            raise ValueError("having is for views with `group_by`; use `filter`")
        if self.partial_aggregation and self.group_by is None:
            raise ValueError("partial_aggregation is for views with `group_by`; remove it")
        if self.partial_aggregation and self.as_of:
            raise ValueError(
                "as_of: with partial_aggregation the records of a transaction count together, and no row has a prefix "
                "of its own; remove one of the two"
            )
        if len({each.topic for each in self.join}) < len(self.join):
            raise ValueError("a topic is joined twice; make a view with one join, and another one over it")
        if any(each.topic == self.underlying for each in self.join):
            raise ValueError(f"{self.underlying!r} is joined to itself; make a projection of it, and join that")
        return self

    @property
    def kind(self) -> Literal["aggregate", "join", "projection"]:
        """The way in which the rows are computed."""
        if self.join:
            return "join"
        return "projection" if self.group_by is None else "aggregate"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics whose records it reads, the underlying first."""
        return (self.underlying, *(each.topic for each in self.join))

    @property
    def members(self) -> frozenset[str]:
        """The members that a row can have."""
        pointers = (*(self.group_by or {}).values(), *self.fields)
        return frozenset(names(pointer)[0] for pointer in pointers)

    def members_of(self, topic: str) -> frozenset[str] | None:
        """Return the members that the records of an input can have; None: the settings do not say."""
        return self._members_of.get(topic)

    def with_members(self, members: Mapping[str, frozenset[str]]) -> ViewConfig:
        """Return the view with the members of its inputs' records.

        Args:
            members: by topic.
        """
        view = self.model_copy()
        view._members_of = dict(members)  # noqa: SLF001 - of its own class
        return view

    def stages(self, name: str) -> Mapping[str, str]:
        """Return the internal families of the view, and the topic whose record settings each has.

        Args:
            name: the view.
        """
        if self.kind == "projection":
            return {}
        splits = {f"{name}.{SPLIT}": self.underlying}
        if self.kind == "aggregate":
            return splits
        for place, joined in enumerate(self.join, 1):
            splits[f"{name}.{SPLIT}{place}"] = joined.topic
        return {**splits, f"{name}.{JOIN}": name} if self.join_method == "repartition" else splits

    def with_join_method(self, key: _Key, joined_keys: Mapping[str, _Key]) -> ViewConfig:
        """Return the view with the way of its join decided.

        Args:
            key: the key fields of the underlying, and whether its keys are those of groups.
            joined_keys: those of each joined topic.

        Raises:
            ValueError: `same_key` is asked for, and a join is by other fields, or of a topic whose keys are made in
                another way; or `as_of`, and the way has no prefixes.
        """
        view = self._with_join_method(key, joined_keys)
        if view.as_of and view.join_method == "repartition":
            raise ValueError(
                "as_of: with join_method repartition the records of a row meet in another stage, which does not pass "
                "their offsets on; use join_method broadcast, or remove as_of"
            )
        return view

    def _with_join_method(self, key: _Key, joined_keys: Mapping[str, _Key]) -> ViewConfig:
        if not self.join or self.join_method in {"repartition", "broadcast"}:
            return self
        fields, is_of_groups = key
        others = [
            each
            for each in self.join
            if tuple(each.on) != fields or (tuple(each.on.values()), is_of_groups) != joined_keys[each.topic]
        ]
        if self.join_method == "same_key" and (others or not fields):
            topic = self.join[0].topic if not others else others[0].topic
            joined_fields, joined_is_of_groups = joined_keys[topic]
            if is_of_groups != joined_is_of_groups:
                raise ValueError(
                    f"join_method same_key: one of {self.underlying!r} and {topic!r} has groups, whose keys are made "
                    'in another way: 1 and 1.0 are one, and "1" is another one; remove join_method'
                )
            raise ValueError(
                f"join_method same_key: the join of {topic!r} is not by the key fields of both sides, which are "
                f"{', '.join(fields) or 'none'} and {', '.join(joined_fields) or 'none'}; remove join_method"
            )
        return self.model_copy(update={"join_method": "repartition" if others or not fields else "same_key"})

    def topic(self, underlying: TopicConfig) -> TopicConfig:
        """Return the settings of its rows, as a topic has them.

        Args:
            underlying: the settings of the underlying's records.
        """
        if self.group_by is not None:
            key = tuple(self.group_by.values())
        else:
            # The keys are the underlying's; fields make them only if the rows have these as they are.
            key = underlying.key_fields
            key = key if all(self.fields.get(path) == path for path in key) else ()
        return TopicConfig(
            key=key or EXPLICIT_KEY,
            partitions=self.partitions or underlying.partitions,
            max_record_bytes=self.max_record_bytes,
            config=self.config,
            kafka_topics=self.kafka_topics,
            foreign_partition="move" if self.group_by is not None else underlying.foreign_partition,
            allow_one_replica=underlying.allow_one_replica,
        )


def stage_topic(records: TopicConfig) -> TopicConfig:
    """Return the settings of a stage's own topics, which no other stage reads.

    Args:
        records: the settings of the records that it reads.
    """
    return records.model_copy(update={"key": EXPLICIT_KEY, "kafka_topics": {}, "config": {}})


def _check_pointer(setting: str, path: str) -> None:
    if not path.startswith("/") or path == "/":
        raise ValueError(f"{setting}: {path!r} is no path; write /{path.strip('/') or 'name'}")


_DAY_S: Final = 86_400.0

MAX_DELIVERIES_MAX: Final = 9
"""Most deliveries of a message: Kafka counts ten at most, and one must be left to bring it to the dead letters."""

QueueKafkaTopics: TypeAlias = dict[Literal["queue", "dlq"], str]
"""The Kafka names of a queue's topics that have names of their own, by role."""


class QueueConfig(Section):
    """One queue: `queues.<name>`."""

    underlying: TopicName
    """The topic whose merged records it has: one of `topics`, with a SOW."""
    filter: str | None = None
    """The merged records that become messages, in the filter language; none: all of them."""
    lease: IntervalS = Field(default=30.0, ge=1, le=3600)
    """Time for which a message belongs to the consumer that received it; afterwards any consumer may receive it.
    Kafka's own limits, `group.share.min.record.lock.duration.ms` and `…max…`, are 15 and 60 seconds.
    """
    max_deliveries: int = Field(default=5, ge=1, le=MAX_DELIVERIES_MAX)
    """Deliveries of a message that is not acknowledged, after which it becomes a dead letter."""
    retention: IntervalS = Field(default=7 * _DAY_S, ge=60)
    """Time for which Kafka keeps a message, also one that no consumer has received."""
    config: Properties = Field(default_factory=dict)
    """Kafka topic settings for both topics of the queue, such as `min.insync.replicas`."""
    kafka_topics: QueueKafkaTopics = Field(default_factory=dict)
    """Kafka topics of the queue that have names of their own, by role, `queue` or `dlq`; the others are
    `<topic_prefix><name>.<role>`.
    """

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return round(self.lease * 1000)
