"""The tree of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from processor.config.families import Families
from processor.config.gateway import GatewayConfig
from processor.config.runtime import RuntimeConfig, TelemetryConfig, check_kafka
from processor.config.secrets import hide_secrets
from processor.config.section import Environment, IntervalS, Properties
from processor.errors import unknown_name


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
        return Environment(settings_cls), init_settings

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
