"""The tree of settings, and how it is read: a YAML file, then the environment, then flags.

Errors in the file name the line and do not show its text, which may hold secrets.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from processor.config.families import IN_PYTHON, Families
from processor.config.gateway import GatewayConfig
from processor.config.runtime import RuntimeConfig, TelemetryConfig, check_kafka
from processor.config.secrets import hide_secrets
from processor.config.section import Environment, IntervalS, Properties
from processor.config.suggestions import explain
from processor.config.yaml_values import parse, problem_of
from processor.errors import ConfigurationError, unknown_name


class Config(Families):
    """The tree of settings."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="SOWSTREAM_",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )
    kafka: Properties = Field(default_factory=lambda: {"bootstrap.servers": "localhost:9092"})
    """librdkafka properties for every client: addresses, TLS, SASL."""
    connect_timeout_s: Annotated[IntervalS, Field(gt=0)] = 15.0
    """Longest wait of a command or a client for a first answer of Kafka. A refused login, a host without a name, or a
    port without Kafka ends the wait at once.
    """
    schema_registry: Properties = Field(default_factory=dict)
    """Settings of the schema registry's client: `url`, credentials, TLS; none: schemas come from files."""
    guarantee: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """The delivery guarantee. `at_least_once`: output is seen sooner; the SOW topic stays right, but deltas, acks and
    dead letters may be repeated after a crash.
    """
    state_dir: Path = Path("./state")
    """The directory of the RocksDB databases; losing it costs a restore, nothing else."""
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    """The gateway for browsers."""
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    """OpenTelemetry: spans and metrics for a collector."""
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    """Settings of the running of workers."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Give the environment priority over the file, which `load` passes as arguments."""
        return Environment(settings_cls, init_settings()), init_settings

    @model_validator(mode="after")
    def _kafka_fits(self) -> Config:
        """Check that the properties and the section `runtime` do not contradict each other."""
        try:
            check_kafka(self.kafka, self.runtime)
        except ValueError as error:
            raise ValueError(f"kafka: {error}") from None
        return self

    @field_validator("kafka")
    @classmethod
    def _kafka_has_an_address(cls, value: dict[str, str]) -> dict[str, str]:
        return {"bootstrap.servers": "localhost:9092"} | value

    @model_validator(mode="after")
    def _gateway_topics_exist(self) -> Config:
        """Check that the section `gateway` names configured topics."""
        names = list(self.names)
        if not names:
            return self  # They come from the topic directory.
        gateway = self.gateway
        sections = {"topics": gateway.topics or (), "indexes": gateway.indexes, "orders": gateway.orders}
        for section, its_names in sections.items():
            for name in its_names:
                if name not in names:
                    raise ValueError(f"gateway.{section}: {unknown_name('topic', name, names)}")
        return self

    @model_validator(mode="after")
    def _sources_are_on(self) -> Config:
        """Turn on the header `source`, which identifies redelivered input, where the guarantee is at least once."""
        if self.guarantee == "at_least_once":
            for name, topic in self.topics.items():
                if not topic.sow:
                    continue  # This topic runs exactly once.
                if not topic.source_header and "source_header" in topic.model_fields_set:
                    raise ValueError(f"topics.{name}.source_header: guarantee at_least_once needs it; remove it")
                self.topics[name] = topic.model_copy(update={"source_header": True})
        return self

    def shown(self, *, changed_only: bool = False) -> dict[str, Any]:
        """The tree as plain values with secrets hidden, for a log: all of it, or where it differs from the defaults."""
        shown: dict[str, Any] = hide_secrets(self.model_dump(mode="json", exclude_defaults=changed_only))
        return shown


log = logging.getLogger("sowstream.settings")

PREFIX: Final = "SOWSTREAM_"
_CLOSE: Final = 0.8
_OTHERS: Final = ("PIPELINE",)
"""The first parts of variables of other programs' settings: of `sowstream-spark`."""


def settings_of(
    source: Mapping[str, Any] | Path | str | None, *, bootstrap: str | None = None, topic_prefix: str | None = None
) -> Config:
    """Read settings that a program gives: a mapping such as a file has, or the path of a file; None: as `load`.

    The environment has priority over a mapping, as over a file. Other arguments and errors as `load`.

    Raises:
        ConfigurationError: a setting is wrong, or the source is of another type.
    """
    if source is None or isinstance(source, Path | str):
        path = None if source is None else Path(source)
        return load(path, bootstrap=bootstrap, topic_prefix=topic_prefix)
    if not isinstance(source, Mapping):
        raise ConfigurationError(
            f"settings are a Config, a mapping or the path of a file, and no {type(source).__name__}"
        )
    tree = dict(source)
    properties = sorted(name for name in tree if "." in str(name))
    if properties:
        raise ConfigurationError(
            f"{properties[0]!r} is a property of Kafka; it belongs into the section 'kafka', and an address may be "
            "given as bootstrap=ADDRESS"
        )
    if topic_prefix is not None:
        tree = {"topic_prefix": topic_prefix, **tree}
    config = _validated(tree, "the settings")
    if bootstrap is not None:
        return config.model_copy(update={"kafka": config.kafka | {"bootstrap.servers": bootstrap}})
    return config


def load(
    path: Path | str | None = None,
    *,
    bootstrap: str | None = None,
    state_dir: Path | None = None,
    topic_prefix: str | None = None,
    file_argument: str = IN_PYTHON,
) -> Config:
    """Read the settings.

    Args:
        path: the YAML file. Without one, `./sowstream.yaml` is read where it exists.
        bootstrap: replaces `kafka.bootstrap.servers`.
        state_dir: replaces `state_dir`.
        topic_prefix: the setting of this name, for a reader without a file; the file and the environment have priority.
        file_argument: how the caller names a file, for errors.

    Raises:
        ConfigurationError: the file is missing or not YAML, or a setting is wrong; one line each.
    """
    if not isinstance(path, Path | str | None):
        raise ConfigurationError(
            f"load reads a file, and got a {type(path).__name__}; settings that are no file go to "
            "Client(name, settings), or make a Config(**settings)"
        )
    file = Path(path or "sowstream.yaml")
    tree: dict[str, Any] = {}
    if path is not None or file.exists():
        tree = _read(file, file_argument)
    if topic_prefix is not None:
        tree = {"topic_prefix": topic_prefix, **tree}
    config = _validated(tree, str(file) if tree else "the environment")
    for variable, meant in misspelt(os.environ, Config.model_fields).items():
        log.warning(
            "variable of the environment that is no setting", extra={"variable": variable, "meant": meant or None}
        )
    flags: dict[str, Any] = {}
    if bootstrap is not None:
        flags["kafka"] = config.kafka | {"bootstrap.servers": bootstrap}
    if state_dir is not None:
        flags["state_dir"] = state_dir
    is_absent = path is None and not file.exists()
    return config.model_copy(update=flags).as_loaded(file.absolute() if is_absent else None, file_argument)


def _validated(tree: dict[str, Any], place: str) -> Config:
    try:
        return Config(**tree)
    except ValidationError as error:
        raise ConfigurationError(f"{place}: settings that cannot be used:\n{explain(error, Config)}") from None
    except SettingsError as error:
        raise ConfigurationError(
            f"the environment: {error}; a whole section is written as JSON, one setting as SOWSTREAM_<SECTION>__<KEY>"
        ) from None


def _read(file: Path, file_argument: str) -> dict[str, Any]:
    try:
        tree = parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}; name the settings file: {file_argument}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: not UTF-8 text, from byte {error.start} on") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{file}: {problem_of(error)}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(name, str) for name in tree):
        raise ConfigurationError(f"{file}: expected settings such as `topics:` at the top level")
    return tree


def misspelt(variables: Iterable[str], settings: Iterable[str]) -> dict[str, str]:
    """Variables that are no settings, each with the closest setting; empty if there is none.

    Of those without a section (`__`) only variables close to a setting count: images, tests and Kubernetes use the
    prefix, too.

    Args:
        variables: names of the environment.
        settings: names of the settings at the top level.
    """
    names = [name.upper() for name in settings]
    suggestions = {}
    for variable in variables:
        first, section, rest = variable.upper().removeprefix(PREFIX).partition("__")
        if not variable.upper().startswith(PREFIX) or first in (*names, *_OTHERS):
            continue
        close = difflib.get_close_matches(first, names, n=1, cutoff=_CLOSE)
        if close or section:
            suggestions[variable] = f"{PREFIX}{close[0]}{section}{rest}" if close else ""
    return suggestions
