"""The building blocks of the settings: the base of all sections, and types for values as people write them."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from processor.config.kafka_names import Role

_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def interval_s(value: object) -> object:
    """Read `500ms`, `5s`, `1m` or a number of seconds."""
    if not isinstance(value, str):
        return value
    match = _INTERVAL.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not an interval; write 500ms, 5s, 1m or 1h")
    return float(match[1]) * _UNIT_S[match[2]]


def _as_text(value: object) -> object:
    """Convert values that YAML reads as other types, such as `true` and `9092`, to the text that Kafka wants."""
    if not isinstance(value, dict):
        return value
    return {name: str(item).lower() if isinstance(item, bool) else str(item) for name, item in value.items()}


Properties: TypeAlias = Annotated[dict[str, str], BeforeValidator(_as_text)]
"""Settings in Kafka's spelling."""

IntervalS: TypeAlias = Annotated[float, BeforeValidator(interval_s), Field(allow_inf_nan=False)]
"""Seconds; written `500ms`, `5s`, `1m`, `1h` or a bare number."""

TopicName: TypeAlias = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,200}$")]
"""A family's name: Kafka's characters, without the dot that separates it from its role."""

KafkaTopics: TypeAlias = Annotated[dict[Role, str], BeforeValidator(_as_text)]
"""The Kafka names of topics that have names of their own, by role."""


def _no_dots_alone(value: str) -> str:
    if not value.strip("."):
        raise ValueError(f"{value!r} is no name of a directory; write more than dots")
    return value


ApplicationId: TypeAlias = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,100}$"), AfterValidator(_no_dots_alone)]
"""The prefix of consumer groups and transactional ids. Local state is in a directory of this name in `state_dir`, so
that it has no path separators and is neither `.` nor `..`.
"""


class Section(BaseModel):
    """Base of every section: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
