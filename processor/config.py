"""Settings: one frozen tree, read from a YAML file, then the environment, then flags, each beating the one before.

Environment variables are `SOWSTREAM_<SECTION>__<KEY>`, for example `SOWSTREAM_KAFKA__BOOTSTRAP.SERVERS` or
`SOWSTREAM_STATE_DIR`. An unknown key is an error that suggests the one that was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from processor.errors import ConfigurationError
from processor.explanation import explain, unknown_name
from processor.secret import hide_secrets

_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def _interval_s(value: object) -> object:
    """Read `500ms`, `5s`, `1m` or a number of seconds."""
    if not isinstance(value, str):
        return value
    match = _INTERVAL.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not an interval; write 500ms, 5s, 1m or 1h")
    return float(match[1]) * _UNIT_S[match[2]]


def _as_text(value: object) -> object:
    """YAML reads `true` and `9092` as other types; Kafka wants their text."""
    if not isinstance(value, dict):
        return value
    return {name: str(item).lower() if isinstance(item, bool) else str(item) for name, item in value.items()}


def _schema(value: object) -> object:
    """A bare path is a file."""
    return {"file": value} if isinstance(value, str | Path) else value


EXPLICIT_KEY: Final = ("explicit",)
"""What `key: explicit` is kept as."""


def _key(value: object) -> object:
    """The one word that is no list of paths; the environment says a list as JSON."""
    if value == "explicit":
        return EXPLICIT_KEY
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value


def _step(value: object) -> object:
    """A bare name is a plug-in without settings."""
    return {"use": value} if isinstance(value, str) else value


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "um": {"merge_depth": 1, "null_policy": "set", "default_command": "publish"},
}
"""Settings of a topic that go together. `um`: a nested object replaces, a null is a value, a publish that does not say
`allow-merge` replaces the record."""

Properties: TypeAlias = Annotated[dict[str, str], BeforeValidator(_as_text)]
"""Settings as Kafka spells them."""

IntervalS: TypeAlias = Annotated[float, BeforeValidator(_interval_s), Field(allow_inf_nan=False)]
"""Seconds; written `500ms`, `5s`, `1m`, `1h` or a bare number."""

TopicName: TypeAlias = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,200}$")]
"""A family's name: Kafka's characters, without the dot that separates it from its role."""


class Section(BaseModel):
    """Base of every part of the tree: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SchemaConfig(Section):
    """Where the schema of a topic's records is: a file, or a subject of the registry."""

    file: Path | None = None
    """A file: an Avro schema (.avsc), or a protobuf descriptor set."""
    subject: str | None = None
    """A subject of the registry; its latest version at the start of a worker is the schema its records are kept in."""
    message: str | None = None
    """The full name of the message in a protobuf descriptor set."""


class StepConfig(Section):
    """One preprocessing or enrichment plug-in of a topic."""

    use: str
    """Its name in the entry-point group `sowstream.preprocessors` or `sowstream.enrichers`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """What it takes, by keyword."""


class SequenceGroupConfig(Section):
    """Fields that a late delta must not undo."""

    by: str
    """JSON Pointer of the field that orders the updates, such as /ts."""
    fields: tuple[str, ...] = Field(min_length=1)
    """JSON Pointers of the fields that apply only if `by` is not older than the one applied."""


class TopicConfig(Section):
    """One SOW topic: `topics.<name>`."""

    preset: Literal["um"] | None = None
    """`um`: as Universal Messaging merges; see `PRESETS`. What is set here beats the preset."""
    message_type: str = "json"
    """Name of the codec, entry-point group `sowstream.codecs`."""
    message_schema: Annotated[SchemaConfig | None, BeforeValidator(_schema)] = Field(default=None, alias="schema")
    """The schema of the records, for message types that have one: a file, or {subject: NAME}."""
    separator: str = Field(default="\x01", min_length=1, max_length=1)
    """What stands between the fields of `fix` and `nvfix`."""
    parts: tuple[str, ...] = ()
    """The message types of a composite's parts, in order."""
    key: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_key)] = ("/id",)
    """JSON Pointers of the key fields: their values make the Kafka record key. `explicit`: the publisher gives it."""
    partitions: int = Field(default=4, ge=1, le=10_000)
    """Partitions of every topic of the family. It cannot change later: keys would move."""
    default_command: Literal["publish", "delta_publish"] = "delta_publish"
    """What a record without header `command` is."""
    null_policy: Literal["ignore", "set", "remove"] = "ignore"
    """What a null in a delta does (merge.md, rule 6)."""
    merge_depth: int | None = Field(default=None, ge=1)
    """How deep objects merge; None is to any depth, 1 replaces nested objects whole."""
    merge_rules: dict[str, str] = Field(default_factory=dict)
    """How a delta's value meets the record's, by JSON Pointer: a name in `sowstream.merge_rules`, such as `sum`."""
    sequence_groups: tuple[SequenceGroupConfig, ...] = ()
    """Fields that late, out-of-order deltas cannot undo."""
    preprocess: tuple[Annotated[StepConfig, BeforeValidator(_step)], ...] = ()
    """Plug-ins that see each message before its key is made, in order."""
    enrich: tuple[Annotated[StepConfig, BeforeValidator(_step)], ...] = ()
    """Plug-ins that see each message and the record it meets, in order."""
    expiration: IntervalS | None = Field(default=None, gt=0)
    """How long a record lives after its last update; none: for ever."""
    source_header: bool = False
    """Say on SOW and delta records which input record they came from, as header `source`."""
    max_depth: int = Field(default=128, ge=1, le=254)
    """Deepest nesting accepted."""
    max_record_bytes: int = Field(default=1_048_576, ge=1, le=10_485_760)
    """Largest input and largest merged record; larger ones are rejected as `too_large`. With the longest headers beside
    it, a record of 10 MiB is what the topics take."""
    dlq_max_ratio: float = Field(default=0.9, ge=0, le=1)
    """The worker stops when more than this part of a window's records of a partition was rejected; 1: never."""
    dlq_window_records: int = Field(default=1000, ge=1)
    """Length of that window, in input records."""
    config: Properties = Field(default_factory=dict)
    """Kafka topic settings for every topic of the family, such as `min.insync.replicas`."""

    @model_validator(mode="before")
    @classmethod
    def _preset_first(cls, value: Any) -> Any:
        """What a preset says, under what is set."""
        if not isinstance(value, dict):
            return value
        return {**PRESETS.get(str(value.get("preset")), {}), **value}

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The JSON Pointers of the key fields; none where the key is explicit."""
        return () if self.key == EXPLICIT_KEY else self.key

    @field_validator("key")
    @classmethod
    def _key_is_pointers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value == EXPLICIT_KEY:
            return value
        if not value or any(not path.startswith("/") or path == "/" for path in value):
            raise ValueError("key needs at least one path such as /id")
        return value


class ConflatedConfig(Section):
    """One conflated topic: `conflated.<name>`."""

    underlying: TopicName
    """The topic it copies: any other one that is configured."""
    interval: IntervalS = Field(default=5.0, ge=0.1)
    """A key changes at most once in this time; least 100 ms."""


class ProcessorConfig(Section):
    """A third party's processor: `processors.<name>`."""

    use: str
    """Its name in the entry-point group `sowstream.processors`."""
    underlying: TopicName | None = None
    """The topic whose SOW it reads; none for a processor that reads its own `<name>.publish`."""
    topic: TopicConfig = Field(default_factory=TopicConfig)
    """What holds for its own records; one with an `underlying` has the underlying's."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """What its settings model takes."""


class RuntimeConfig(Section):
    """How workers run: `runtime`."""

    commit_interval_s: IntervalS = Field(default=0.2, gt=0)
    """Longest time between two commits while records flow; an idle worker commits at once."""
    commit_records_max: int = Field(default=100_000, ge=1)
    """Most input records in one transaction."""
    batch_records_max: int = Field(default=5_000, ge=1)
    """Most records given to a processor at once."""
    transaction_timeout_s: IntervalS = Field(default=10.0, ge=1, le=900)
    """The broker aborts a dead worker's transaction after this; readers of the topics wait for it that long."""
    session_timeout_s: IntervalS = Field(default=10.0, ge=1)
    """A worker that is not heard of for this long loses its partitions."""
    shutdown_timeout_s: IntervalS = Field(default=20.0, ge=1)
    """A stop that takes longer than this is ended by force; Kafka then rolls the open transaction back."""
    write_back_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Committed records that may wait in memory before they go to RocksDB, for all partitions of a processor."""
    write_back_interval_s: IntervalS = Field(default=10.0, gt=0)
    """Longest time they wait: what a killed worker has to read again from the SOW topic."""
    block_cache_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """RocksDB's block cache and write buffers, shared by all partitions of a process."""
    restore_stall_timeout_s: IntervalS = Field(default=120.0, gt=0)
    """A restore that gets no record for this long stops the worker with an error."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Serve Prometheus metrics here, the processes of one `state_dir` on ports one after the other; none: nowhere."""

    @model_validator(mode="after")
    def _commit_within_transaction(self) -> RuntimeConfig:
        if self.commit_interval_s * 2 > self.transaction_timeout_s:
            raise ValueError("commit_interval_s must be at most half of transaction_timeout_s")
        return self


class Config(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="SOWSTREAM_",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    application_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,100}$")] = "sowstream"
    """First part of consumer groups and transactional ids."""
    kafka: Properties = Field(default_factory=lambda: {"bootstrap.servers": "localhost:9092"})
    """librdkafka properties for every client: addresses, TLS, SASL."""
    schema_registry: Properties = Field(default_factory=dict)
    """Settings of the schema registry's client: `url`, credentials, TLS; none: schemas come from files."""
    guarantee: Literal["exactly_once"] = "exactly_once"
    """What a record's effects are promised to be."""
    state_dir: Path = Path("./state")
    """Where RocksDB keeps the partitions; losing it costs a restore, nothing else."""
    topics: dict[TopicName, TopicConfig] = Field(default_factory=dict)
    """The SOW topics."""
    conflated: dict[TopicName, ConflatedConfig] = Field(default_factory=dict)
    """The conflated topics."""
    processors: dict[TopicName, ProcessorConfig] = Field(default_factory=dict)
    """Processors of third parties."""
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    """How workers run."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment beats the file, which `load` passes as arguments."""
        return env_settings, init_settings

    @field_validator("kafka")
    @classmethod
    def _kafka_has_an_address(cls, value: dict[str, str]) -> dict[str, str]:
        return {"bootstrap.servers": "localhost:9092"} | value

    @model_validator(mode="after")
    def _names_fit(self) -> Config:
        """Every name is used once, and every underlying exists and leads to a topic."""
        sections: tuple[Mapping[str, object], ...] = (self.topics, self.conflated, self.processors)
        for index, section in enumerate(sections):
            for other in sections[index + 1 :]:
                if twice := sorted(set(section) & set(other)):
                    raise ValueError(f"{twice[0]!r} is configured twice; a name stands for one family of topics")
        for name in (*self.conflated, *self.processors):
            self._root(name)
        return self

    def _root(self, name: str) -> str:
        """The topic at the bottom of a chain of copies."""
        chain = [name]
        while (underlying := self._underlying(chain[-1])) is not None:
            if underlying in chain:
                raise ValueError(f"underlying topics go in a circle: {' → '.join([*chain, underlying])}")
            chain.append(underlying)
        root = chain[-1]
        if root in self.topics or root in self.processors:
            return root
        raise ValueError(f"{chain[-2]!r} has underlying {root!r}, which is not configured")

    def _underlying(self, name: str) -> str | None:
        """The topic that another one is a copy of."""
        section = self.conflated.get(name) or self.processors.get(name)
        return None if section is None else section.underlying

    def root(self, name: str) -> str:
        """The topic that makes the records: the one of this name, or the one it is a copy of.

        Raises:
            ConfigurationError: no such topic.
        """
        known = [*self.topics, *self.conflated, *self.processors]
        if name not in known:
            raise ConfigurationError(unknown_name("topic", name, known))
        return self._root(name)

    def topic(self, name: str) -> TopicConfig:
        """What holds for a topic's records: the section of its root.

        Raises:
            ConfigurationError: no such topic.
        """
        root = self.root(name)
        return self.topics[root] if root in self.topics else self.processors[root].topic

    def shown(self) -> dict[str, Any]:
        """The tree as plain values, secrets hidden: fit for a log."""
        shown: dict[str, Any] = hide_secrets(self.model_dump(mode="json"))
        return shown


def load(path: Path | None = None, *, bootstrap: str | None = None, state_dir: Path | None = None) -> Config:
    """Read the settings.

    Args:
        path: the YAML file. Without one, `./sowstream.yaml` is read where it exists.
        bootstrap: beats `kafka.bootstrap.servers`.
        state_dir: beats `state_dir`.

    Raises:
        ConfigurationError: the file is missing or not YAML, or a setting is wrong; one line each.
    """
    file = path or Path("sowstream.yaml")
    tree: dict[str, Any] = {}
    if path is not None or file.exists():
        tree = _read(file)
    try:
        config = Config(**tree)
    except ValidationError as error:
        place = file if tree else "the environment"
        raise ConfigurationError(f"{place}: settings that cannot be used:\n{explain(error, Config)}") from None
    except SettingsError as error:
        raise ConfigurationError(
            f"the environment: {error}; a whole section is written as JSON, one setting as SOWSTREAM_<SECTION>__<KEY>"
        ) from None
    flags: dict[str, Any] = {}
    if bootstrap is not None:
        flags["kafka"] = config.kafka | {"bootstrap.servers": bootstrap}
    if state_dir is not None:
        flags["state_dir"] = state_dir
    return config.model_copy(update=flags)


def _read(file: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}; name the settings file with -c FILE") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: not UTF-8 text, from byte {error.start} on") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{file}: not YAML: {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(name, str) for name in tree):
        raise ConfigurationError(f"{file}: expected settings such as `topics:` at the top level")
    return tree
