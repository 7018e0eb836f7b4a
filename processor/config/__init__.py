"""The settings: one frozen tree, read from a YAML file, then the environment, then flags; the later has priority.

Environment variables are `SOWSTREAM_<SECTION>__<KEY>`, for example `SOWSTREAM_KAFKA__BOOTSTRAP_SERVERS` or
`SOWSTREAM_STATE_DIR`. An unknown key is an error that suggests the closest one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from processor.config.config import Config, load, settings_of
    from processor.config.derived_topics import QueueConfig, ViewConfig
    from processor.config.runtime import RuntimeConfig
    from processor.config.section import ApplicationId
    from processor.config.topic import (
        EXPLICIT_KEY,
        ConflatedConfig,
        SchemaConfig,
        StepConfig,
        TopicConfig,
    )

_HOMES = {
    "ApplicationId": "section",
    "Config": "config",
    "ConflatedConfig": "topic",
    "EXPLICIT_KEY": "topic",
    "QueueConfig": "derived_topics",
    "RuntimeConfig": "runtime",
    "SchemaConfig": "topic",
    "StepConfig": "topic",
    "TopicConfig": "topic",
    "ViewConfig": "derived_topics",
    "load": "config",
    "settings_of": "config",
}

__all__ = [
    "EXPLICIT_KEY",
    "ApplicationId",
    "Config",
    "ConflatedConfig",
    "QueueConfig",
    "RuntimeConfig",
    "SchemaConfig",
    "StepConfig",
    "TopicConfig",
    "ViewConfig",
    "load",
    "settings_of",
]


def __getattr__(name: str) -> object:
    """Import a name at its first use: a process that is passed its settings, as on Spark, needs no pydantic."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
