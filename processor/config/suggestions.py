"""Describes errors in settings in plain words, with a suggestion for an unknown name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from processor.errors import ConfigurationError, unknown_name

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo

_EXPECTED = {
    "missing": "missing; it is required",
    "dict_type": "expected settings, each `name: value`, or {} for none",
    "model_type": "expected settings, each `name: value`, or {} for none",
    "tuple_type": "expected a list, such as [/id]",
    "string_type": "expected a text; a number, a truth value or a date that is one is written in quotes",
}
"""Pydantic's messages about Python types, in terms of YAML."""

_REMOVED = {
    "tick_s": "it is always 20 ms; remove the line",
    "metrics_interval_s": "OpenTelemetry's OTEL_METRIC_EXPORT_INTERVAL, in milliseconds, sets it; remove the line",
    "commit_records_max": "remove the line; runtime.batch_bytes_max limits a transaction",
    "write_back_interval_s": "remove the line; it is 10 s",
    "restore_stall_timeout_s": "remove the line; it is 2 minutes",
    "state_cleanup_delay_s": "remove the line; it is 10 minutes",
}
"""Settings of earlier versions, and what to do."""

PATTERNS = {
    r"^[a-zA-Z0-9_-]{1,200}$": "expected a name of up to 200 letters, digits, _ and -",
    r"^[a-zA-Z0-9._-]{1,100}$": "expected a name of up to 100 letters, digits, dots, _ and -",
    r"^([a-zA-Z0-9][a-zA-Z0-9._-]{0,98}[._-])?$": "expected letters and digits, and at the end a dot, _ or -",
}
"""The texts that fit a pattern of the settings, in words."""


def validated(model: type[BaseModel], values: Mapping[str, Any], section: str) -> BaseModel:
    """The settings of a plug-in.

    Args:
        model: the model of the settings.
        values: the settings, by name.
        section: their place in the tree, for errors.

    Raises:
        ConfigurationError: some cannot be used; a line each.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - it takes long to import

    try:
        return model.model_validate(values)
    except ValidationError as error:
        wrong = explain(error, model, section)
        raise ConfigurationError(f"settings that cannot be used:\n{wrong}") from None


def explain(error: ValidationError, model: type[BaseModel], section: str = "") -> str:
    """Describe errors in settings: a line each, with a suggestion for an unknown key.

    The values are left out: one may be a password.

    Args:
        error: the error of the model.
        model: the model of the settings.
        section: their place in the tree.
    """
    return "\n".join(f"  {_explain(detail, model, section)}" for detail in error.errors(include_url=False))


def _explain(detail: Mapping[str, Any], model: type[BaseModel], section: str) -> str:
    path = detail["loc"]
    place = ".".join(str(part) for part in (section, *path) if part not in ("", "[key]"))
    if detail["type"] == "string_pattern_mismatch" and detail["ctx"]["pattern"] in PATTERNS:
        return f"{place}: {PATTERNS[detail['ctx']['pattern']]}"
    if detail["type"] != "extra_forbidden":
        message = _EXPECTED.get(detail["type"], detail["msg"].removeprefix("Value error, "))
        return f"{place}: {message}" if place else message
    if path[-1] in _REMOVED:
        return f"{place}: no setting any more; {_REMOVED[path[-1]]}"
    return f"{place}: {unknown_name('setting', str(path[-1]), _known_keys(model, path[:-1]))}"


def _known_keys(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """The keys of the section at a place in the tree."""
    for part in path:
        field = _by_key(model).get(str(part))
        if field is not None:
            model = next(_sections_in(field.annotation), model)
    return list(_by_key(model))


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in a type, such as that of the values of a mapping or of the items of a list."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def _by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by their keys in a file: a field that is a word of Python has another name there."""
    return {field.alias or name: field for name, field in model.model_fields.items()}
