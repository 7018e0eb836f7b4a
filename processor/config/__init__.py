"""The settings: one frozen tree, read from a YAML file, then the environment, then flags; the later has priority.

Environment variables are `SOWSTREAM_<SECTION>__<KEY>`, for example `SOWSTREAM_KAFKA__BOOTSTRAP_SERVERS` or
`SOWSTREAM_STATE_DIR`. An unknown key is an error that suggests the closest one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from processor.config.config import Config
    from processor.config.derived_topics import JoinConfig, QueueConfig, ViewConfig
    from processor.config.reading import load, settings_of
    from processor.config.runtime import RuntimeConfig
    from processor.config.section import ApplicationId, IntervalS, Properties, Section, TopicName
    from processor.config.topic import (
        EXPLICIT_KEY,
        PRESETS,
        ConflatedConfig,
        ProcessorConfig,
        SchemaConfig,
        SequenceGroupConfig,
        StepConfig,
        TopicConfig,
    )

_HOMES = {
    "ApplicationId": "section",
    "Config": "config",
    "ConflatedConfig": "topic",
    "EXPLICIT_KEY": "topic",
    "IntervalS": "section",
    "JoinConfig": "derived_topics",
    "PRESETS": "topic",
    "ProcessorConfig": "topic",
    "Properties": "section",
    "QueueConfig": "derived_topics",
    "RuntimeConfig": "runtime",
    "SchemaConfig": "topic",
    "Section": "section",
    "SequenceGroupConfig": "topic",
    "StepConfig": "topic",
    "TopicConfig": "topic",
    "TopicName": "section",
    "ViewConfig": "derived_topics",
    "load": "reading",
    "settings_of": "reading",
}

__all__ = [
    "EXPLICIT_KEY",
    "PRESETS",
    "ApplicationId",
    "Config",
    "ConflatedConfig",
    "IntervalS",
    "JoinConfig",
    "ProcessorConfig",
    "Properties",
    "QueueConfig",
    "RuntimeConfig",
    "SchemaConfig",
    "Section",
    "SequenceGroupConfig",
    "StepConfig",
    "TopicConfig",
    "TopicName",
    "ViewConfig",
    "load",
    "settings_of",
]


def __getattr__(name: str) -> object:
    """Import a name at its first use: a process that is passed its settings, as on Spark, needs no pydantic."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
