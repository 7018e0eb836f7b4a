"""The building blocks of the settings: the base of all sections, and types for values as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from processor.config.kafka_names import Role
from processor.config.yaml_values import QUOTES, Odd, WrittenWord, parse_json
from processor.errors import ConfigurationError

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
    """Convert the values of properties to the texts that Kafka wants; one that may be meant otherwise is refused."""
    if not isinstance(value, dict):
        return value
    return {
        name: _joined(name, item) if isinstance(item, list | tuple) else _text(name, item)
        for name, item in value.items()
    }


def _joined(name: object, items: Sequence[object]) -> str:
    """The text of a list, such as `bootstrap.servers: [a:9092, b:9092]`."""
    if not items:
        raise ValueError(f"{name}: the list is empty; remove the line")
    return ",".join(_text(name, item) for item in items)


def _text(name: object, value: object) -> str:
    """The text of one value."""
    if (problem := _problem(name, value)) is not None:
        raise ValueError(f"{name}: {problem}")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _problem(name: object, value: object) -> str | None:
    """The reason against a value as a text, which it does not show, as it may be a password; None: there is none."""
    if isinstance(value, WrittenWord):
        return f"YAML may read an unquoted yes, no, on or off as true or false; {QUOTES}"
    if isinstance(value, Odd):
        return f"YAML reads a number here, of which another text would be left; {QUOTES}"
    if isinstance(value, str | int | float):
        return None
    if value is None:
        return f"empty, or null; {QUOTES}, or remove the line"
    if isinstance(value, dict):
        return f"a section, where a text is expected; write {name}.NAME: VALUE in one line"
    return f"a {type(value).__name__}, where a text is expected; {QUOTES}"


def _one_text_each(value: object) -> object:
    """Convert the values of a mapping to texts, of which none is a list."""
    return {name: _text(name, item) for name, item in value.items()} if isinstance(value, dict) else value


def _without_words(value: object) -> object:
    """Refuse an unquoted yes, no, on or off in settings whose types are a plug-in's matter."""
    if _has_word(value):
        raise ValueError(f"an unquoted yes, no, on or off: write true or false, or, for a text, {QUOTES}")
    return value


def _has_word(value: object) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, WrittenWord) or any(_has_word(part) for part in parts)


Properties: TypeAlias = Annotated[dict[str, str], BeforeValidator(_as_text), Field(repr=False)]
"""Settings in Kafka's spelling. Numbers and true or false need no quotes, a list is joined by commas. Not in the `repr`
of their section: one may be a password.
"""

PluginSettings: TypeAlias = Annotated[dict[str, Any], BeforeValidator(_without_words), Field(repr=False)]
"""Settings that a plug-in checks; not in a `repr` either."""

IntervalS: TypeAlias = Annotated[float, BeforeValidator(interval_s), Field(allow_inf_nan=False)]
"""Seconds; written `500ms`, `5s`, `1m`, `1h` or a bare number."""

TopicName: TypeAlias = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,200}$")]
"""A family's name: Kafka's characters, without the dot that separates it from its role."""

KafkaTopics: TypeAlias = Annotated[dict[Role, str], BeforeValidator(_one_text_each)]
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


_OF_KAFKA = frozenset(("kafka", "schema_registry"))
"""The sections whose keys are Kafka's: words and dots, and no `_`."""


class Environment(EnvSettingsSource):
    """The variables of the environment. A number or a truth value stays the text that it is, such as a password.

    Kafka's names may have `_` in place of `.`, which a shell cannot export: `SOWSTREAM_KAFKA__BOOTSTRAP_SERVERS`. A
    variable with the dots beats one without. A topic is found in any case, as variables are read in small letters.
    """

    def __init__(self, settings: type[BaseSettings], written: Mapping[str, Any]) -> None:
        """Take the settings that are written elsewhere, as a tree."""
        super().__init__(settings)
        self._written = written

    def explode_env_vars(self, field_name: str, field: FieldInfo, env_vars: Mapping[str, str | None]) -> dict[str, Any]:
        """Read the variables below one setting."""
        exploded = super().explode_env_vars(field_name, field, env_vars)
        if field_name not in _OF_KAFKA:
            return self._as_written(field_name, exploded)
        return {name.replace("_", "."): value for name, value in exploded.items()} | {
            name: value for name, value in exploded.items() if "_" not in name
        }

    def _as_written(self, section: str, exploded: dict[str, Any]) -> dict[str, Any]:
        """The same below the names that are written elsewhere, such as that of the topic `Orders`."""
        written = self._written.get(section)
        spelled: dict[str, list[str]] = {}
        for name in written if isinstance(written, dict) else ():
            spelled.setdefault(str(name).lower(), []).append(name)
        result = {}
        for name, value in exploded.items():
            known = spelled.get(name, [name])
            if name not in known and len(known) > 1:
                raise ConfigurationError(
                    f"the environment: {section}.{name} may be {' or '.join(known)}; variables have no capital letters"
                )
            result[name if name in known else known[0]] = value
        return result

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Read the JSON text of a section or a list.

        Raises:
            ValueError: it is not JSON, or has a setting twice.
        """
        try:
            decoded = super().decode_complex_value(field_name, field, value)
            if isinstance(decoded, dict | list):
                return parse_json(value)
        except RecursionError:
            raise ValueError("nested deeper than can be read") from None
        return value if isinstance(decoded, bool | int | float) else decoded
