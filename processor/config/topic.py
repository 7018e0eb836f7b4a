"""The sections of topics: the format of their records, and how these are merged, copied or processed."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from processor.config.section import IntervalS, KafkaTopics, PluginSettings, Properties, Section, TopicName, interval_s


def _schema(value: object) -> object:
    """Read a bare path as a file."""
    return {"file": value} if isinstance(value, str | Path) else value


_INTERVAL_MIN_S: Final = 0.1

EXPLICIT_KEY: Final = ("explicit",)
"""The value that stands for `key: explicit`."""


def _key(value: object) -> object:
    """Read the one word that is no list of paths; the environment gives a list as JSON."""
    if value == "explicit":
        return EXPLICIT_KEY
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value


def _interval(value: object) -> object:
    """Read the one word that is no duration."""
    return value if value == "auto" else interval_s(value)


def _step(value: object) -> object:
    """Read a bare name as a plug-in without settings, and paths with expressions as the plug-in that computes them."""
    if isinstance(value, str):
        return {"use": value}
    if isinstance(value, dict) and value and all(str(name).startswith("/") for name in value):
        return {"use": EXPRESSIONS, "settings": {"fields": value}}
    if isinstance(value, dict) and "use" not in value:
        wrong = next((name for name in value if not str(name).startswith("/")), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} is no path; write /{wrong}, or name a plug-in: use")
    return value


def _steps(value: object) -> object:
    """Read a single step as a list of one; the environment gives JSON."""
    if isinstance(value, str) and value.startswith(("[", "{")):
        value = json.loads(value)
    return [value] if isinstance(value, str | dict) else value


EXPRESSIONS: Final = "expressions"
"""The plug-in that computes fields by expressions."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "um": {"merge_depth": 1, "null_policy": "set", "default_command": "publish"},
}
"""Groups of settings that belong together. `um`: a nested object replaces, a null is a value, and a publish without
`allow-merge` replaces the record.
"""


_OF_RECORDS: Final = frozenset(("expiration", "merge_depth", "merge_rules", "null_policy", "preset", "sequence_groups"))
"""Settings of a topic that are about its SOW records."""


class SchemaConfig(Section):
    """The place of the schema of a topic's records: a file, the settings themselves, or a subject of the registry."""

    file: Path | None = None
    """A file: an Avro schema (.avsc), or a protobuf descriptor set."""
    text: str | None = None
    """The schema itself, in place of a file: an Avro schema, as JSON text."""
    base64: str | None = None
    """The schema itself, in place of a file: a protobuf descriptor set, in Base64."""
    subject: str | None = None
    """A subject of the registry; its latest version at the start of a worker is the schema its records are kept in."""
    version: int | None = Field(default=None, ge=1)
    """The version of the subject that is used in place of the latest; a producer may register others by mistake."""
    message: str | None = None
    """The full name of the message in a protobuf descriptor set."""

    @model_validator(mode="after")
    def _content_is_in_one_place(self) -> SchemaConfig:
        places = [name for name in ("file", "text", "base64") if getattr(self, name) is not None]
        if len(places) > 1:
            raise ValueError(f"{places[0]} and {places[1]} both say what the schema is; remove one")
        if places and self.version is not None:
            raise ValueError(f"version is of a registry's subject, and {places[0]} says what the schema is; remove one")
        if self.base64 is not None:
            try:
                base64.b64decode(self.base64, validate=True)
            except binascii.Error as error:
                raise ValueError(f"base64 is not Base64: {error}") from None
        return self

    @property
    def place(self) -> str:
        """The place of the schema, for a message."""
        if self.file is not None:
            return str(self.file)
        if self.subject is None:
            return "the schema in the settings"
        return f"subject {self.subject}" if self.version is None else f"subject {self.subject}, version {self.version}"

    def content(self) -> bytes | None:
        """The bytes of the schema, read from the file or taken from the settings; None if neither has it.

        Raises:
            OSError: the file cannot be read.
        """
        if self.file is not None:
            return self.file.read_bytes()
        if self.text is not None:
            return self.text.encode()
        return None if self.base64 is None else base64.b64decode(self.base64)


class StepConfig(Section):
    """A preprocessing or enrichment plug-in of a topic."""

    use: str
    """Its name in the entry-point group `sowstream.preprocessors` or `sowstream.enrichers`."""
    settings: PluginSettings = Field(default_factory=dict)
    """Its settings, as keyword arguments."""


Steps: TypeAlias = Annotated[
    tuple[Annotated[StepConfig, BeforeValidator(_step)], ...], NoDecode, BeforeValidator(_steps)
]
"""Steps of preprocessing or enrichment, or a single one."""


class SequenceGroupConfig(Section):
    """Fields that a late delta must not undo."""

    by: str
    """JSON Pointer of the field that orders the updates, such as /ts."""
    fields: tuple[str, ...] = Field(min_length=1)
    """JSON Pointers of the fields that have the value of the newest update by `by`, in any order of arrival."""


class TopicConfig(Section):
    """One SOW topic: `topics.<name>`."""

    preset: Literal["um"] | None = None
    """`um`: as Universal Messaging merges; see `PRESETS`. Settings of this section have priority over the preset."""
    message_type: str = "json"
    """Name of the codec, entry-point group `sowstream.codecs`."""
    message_schema: Annotated[SchemaConfig | None, BeforeValidator(_schema)] = Field(default=None, alias="schema")
    """The schema of the records, for message types that have one: a file, or {subject: NAME}."""
    separator: str = Field(default="\x01", min_length=1, max_length=1)
    """The separator between the fields of `fix` and `nvfix`."""
    parts: tuple[str, ...] = ()
    """The message types of a composite's parts, in order."""
    key: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_key)] = ("/id",)
    """JSON Pointers of the key fields: their values make the Kafka record key. `explicit`: the publisher gives it."""
    key_format: Literal["text", "json", "int"] = "text"
    """The encoding of the Kafka key by publishers: the text of the key, JSON (Debezium, Kafka Connect), or a big-endian
    integer of 4 or 8 bytes (Java's IntegerSerializer and LongSerializer).
    """
    key_names: dict[str, str] = Field(default_factory=dict)
    """Names of key fields in Kafka keys of `key_format: json`, by JSON Pointer, where they differ: `{/_id: id}` for
    Debezium's MongoDB connector.
    """
    key_in_body: Literal["required", "optional"] = "required"
    """`required`: a full publish without its key field gets it from the Kafka key. `optional`: it is kept without."""
    foreign_partition: Literal["move", "reject", "accept"] = "move"
    """The treatment of a new key in another partition than Java's hash (murmur2) chooses: it is forwarded to that
    partition, rejected as `wrong_partition`, or merged in place.
    """
    partitions: int = Field(default=4, ge=1, le=10_000)
    """Partitions of every topic of the family. It cannot change later, as keys would move: `moved_from` makes another
    topic with another number.
    """
    moved_from: TopicName | None = None
    """The topic whose place this one takes: `sowstream reshard` copies its records and fences its workers; from then on
    what is published to it is forwarded here.
    """
    default_command: Literal["publish", "delta_publish"] = "delta_publish"
    """The command of a record without header `command`."""
    null_policy: Literal["ignore", "set", "remove"] = "ignore"
    """The effect of a null in a delta (merge.md, rule 6)."""
    merge_depth: int | None = Field(default=None, ge=1)
    """Depth to which objects merge; None is any depth, 1 replaces nested objects completely."""
    merge_rules: dict[str, str] = Field(default_factory=dict)
    """Rule that combines a delta's value with the record's, by JSON Pointer: a name in `sowstream.merge_rules`, such as
    `sum`.
    """
    sequence_groups: tuple[SequenceGroupConfig, ...] = ()
    """Fields that late, out-of-order deltas cannot undo."""
    preprocess: Steps = ()
    """Steps that receive each message before its key is made, in order: expressions that compute fields, such as
    `{/symbol: "UPPER(/symbol)"}`, and plug-ins.
    """
    enrich: Steps = ()
    """Steps that receive each message and the record that it updates, in order: expressions such as
    `{/total: "/qty * /px", /was: "PREVIOUS(/px)"}`, and plug-ins.
    """
    expiration: IntervalS | None = Field(default=None, gt=0)
    """Lifetime of a record after its last update; none: for ever."""
    sow: bool = True
    """True if the last record of each key is kept; False: each message is checked and delivered as it was published."""
    sequence_jump_max: int = Field(default=2**62, ge=0, lt=2**63)
    """How far a `sequence` may be above the highest one of its client; a command beyond it is rejected as `bad_header`.
    0: any distance. The default lets clocks in nanoseconds begin, and keeps one command from using up all numbers.
    """
    source_header: bool = False
    """Add the header `source`, with the position of the input record, to SOW and delta records."""
    max_depth: int = Field(default=128, ge=1, le=250)
    """Deepest nesting accepted."""
    max_record_bytes: int = Field(default=1_048_576, ge=1, le=10_485_760)
    """Largest input and largest merged record; larger ones are rejected as `too_large`. With the longest headers added,
    a record of 10 MiB is the largest that the topics accept.
    """
    dlq_max_ratio: float = Field(default=0.9, ge=0, le=1)
    """A partition is held when more than this part of a window's records was rejected; 1: never."""
    dlq_window_records: int = Field(default=1000, ge=1)
    """Length of that window, in input records."""
    allow_lossy_compaction: bool = False
    """Run although the input topic is compacted too early: deltas may be gone before a worker has read them."""
    allow_one_replica: bool = False
    """Run although only one broker of several has a topic of the family: its records are lost with that broker."""
    config: Properties = Field(default_factory=dict)
    """Kafka topic settings for every topic of the family, such as `min.insync.replicas`."""
    kafka_topics: KafkaTopics = Field(default_factory=dict)
    """Kafka topics of the family that have names of their own, by role, such as `publish: existing.name`; the others
    are `<topic_prefix><name>.<role>`."""

    @model_validator(mode="after")
    def _settings_of_records_need_records(self) -> TopicConfig:
        """Check that a topic without SOW has no settings about SOW records."""
        if not self.sow and (useless := sorted(_OF_RECORDS & self.model_fields_set)):
            raise ValueError(f"sow: false keeps no records that {useless[0]} could be about; remove one of the two")
        return self

    @model_validator(mode="before")
    @classmethod
    def _preset_first(cls, value: Any) -> Any:
        """Fill in the preset under the settings that are given."""
        if not isinstance(value, dict):
            return value
        return {**PRESETS.get(str(value.get("preset")), {}), **value}

    @property
    def allows(self) -> frozenset[Literal["lossy_compaction", "one_replica"]]:
        """The losses that are accepted."""
        accepted: dict[Literal["lossy_compaction", "one_replica"], bool] = {
            "lossy_compaction": self.allow_lossy_compaction,
            "one_replica": self.allow_one_replica,
        }
        return frozenset(name for name, is_accepted in accepted.items() if is_accepted)

    @property
    def has_fields(self) -> bool:
        """False if records are nothing but bytes to Sowstream."""
        return self.message_type != "binary" and (self.message_type != "protobuf" or bool(self.message_schema))

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The JSON Pointers of the key fields; none if the key is explicit."""
        return () if self.key == EXPLICIT_KEY else self.key

    @field_validator("key")
    @classmethod
    def _key_is_pointers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value == EXPLICIT_KEY:
            return value
        if not value or any(not path.startswith("/") or path == "/" for path in value):
            wrong = next((path for path in value if not path.startswith("/")), "")
            if wrong:
                raise ValueError(f"{wrong!r} is no path; write /{wrong}")
            raise ValueError("key needs at least one path such as /id")
        return value

    @model_validator(mode="after")
    def _key_names_are_of_json_keys(self) -> TopicConfig:
        """Check that names of key fields are of this topic's, and that its Kafka keys have names."""
        if not self.key_names:
            return self
        if self.key_format != "json":
            raise ValueError("key_names is for key_format: json; add that, or leave it out")
        if unknown := [pointer for pointer in self.key_names if pointer not in self.key_fields]:
            raise ValueError(f"key_names: {unknown[0]!r} is no key field; those are {', '.join(self.key_fields)}")
        return self


class ConflatedConfig(Section):
    """One conflated topic: `conflated.<name>`."""

    underlying: TopicName
    """The topic it copies: any other one that is configured."""
    interval: Annotated[float | Literal["auto"], BeforeValidator(_interval)] = 5.0
    """Least time between two changes of a key; at least 100 ms. `auto`: from `floor` to `ceiling`, longer as the worker
    falls further behind its input.
    """
    floor: IntervalS = Field(default=_INTERVAL_MIN_S, ge=_INTERVAL_MIN_S)
    """Shortest interval under `auto`."""
    ceiling: IntervalS = Field(default=5.0, ge=_INTERVAL_MIN_S)
    """Longest interval under `auto`."""
    filter: str | None = None
    """The records of the copy, in the filter language; none: all records."""
    max_pending: int = Field(default=1_000_000, ge=1)
    """Most keys of one partition that may wait; beyond it, those that have waited longest are delivered early."""
    max_pending_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """About the most memory for the waiting updates of one partition; beyond it, they are delivered early, too."""
    kafka_topics: KafkaTopics = Field(default_factory=dict)
    """Kafka topics of the family that have names of their own, by role, such as `publish: existing.name`; the others
    are `<topic_prefix><name>.<role>`."""

    @field_validator("interval")
    @classmethod
    def _interval_is_long_enough(cls, value: float | Literal["auto"]) -> float | Literal["auto"]:
        if value != "auto" and not _INTERVAL_MIN_S <= value < float("inf"):
            raise ValueError("the least interval is 100ms")
        return value

    @model_validator(mode="after")
    def _range_is_for_auto(self) -> ConflatedConfig:
        if self.interval != "auto":
            if extra := sorted({"floor", "ceiling"} & self.model_fields_set):
                raise ValueError(f"{extra[0]} is for `interval: auto`; remove it, or set that")
        elif self.floor > self.ceiling:
            raise ValueError("floor is longer than ceiling")
        return self

    @property
    def interval_range_ms(self) -> tuple[int, int]:
        """Shortest and longest interval in milliseconds; equal if the interval is fixed."""
        shortest, longest = (self.floor, self.ceiling) if self.interval == "auto" else (self.interval, self.interval)
        return round(shortest * 1000), round(longest * 1000)


class ProcessorConfig(Section):
    """A third party's processor: `processors.<name>`."""

    use: str
    """Its name in the entry-point group `sowstream.processors`."""
    underlying: TopicName | None = None
    """The topic whose SOW it reads; none for a processor that reads its own `<name>.publish`."""
    topic: TopicConfig = Field(default_factory=TopicConfig)
    """The settings of its own records, with a key of its own; a processor with an `underlying` and without this section
    has those of the underlying."""
    into: dict[str, TopicName] = Field(default_factory=dict)
    """The processors that read its downstream outputs, by output; several may write into one."""
    settings: PluginSettings = Field(default_factory=dict)
    """The settings of the plug-in, checked by its model."""
    kafka_topics: KafkaTopics = Field(default_factory=dict)
    """Kafka topics of the family that have names of their own, by role, such as `publish: existing.name`; the others
    are `<topic_prefix><name>.<role>`."""

    @model_validator(mode="after")
    def _topic_is_its_own(self) -> ProcessorConfig:
        """Check that a processor that reads another topic has no settings of records: they would be ignored."""
        if self.underlying is not None and "topic" in self.model_fields_set:
            raise ValueError(
                f"topic: its records have the settings of its underlying {self.underlying!r}, key included; remove "
                "`topic`, or let the processor forward to the input of a topic of its own (repartition)"
            )
        return self
