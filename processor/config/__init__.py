"""The settings: one frozen tree, read from a YAML file, then the environment, then flags; the later has priority.

Environment variables are `SOWSTREAM_<SECTION>__<KEY>`, for example `SOWSTREAM_KAFKA__BOOTSTRAP.SERVERS` or
`SOWSTREAM_STATE_DIR`. An unknown key is an error that suggests the closest one.
"""

from processor.config.config import Config
from processor.config.load import load
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

__all__ = [
    "EXPLICIT_KEY",
    "PRESETS",
    "ApplicationId",
    "Config",
    "ConflatedConfig",
    "IntervalS",
    "ProcessorConfig",
    "Properties",
    "RuntimeConfig",
    "SchemaConfig",
    "Section",
    "SequenceGroupConfig",
    "StepConfig",
    "TopicConfig",
    "TopicName",
    "load",
]
