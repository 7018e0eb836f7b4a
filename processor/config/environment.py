"""Reads settings from the environment: a section as JSON, one setting as its text."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from processor.config.yaml_values import parse_json


class Environment(EnvSettingsSource):
    """The variables of the environment. A number or a truth value stays the text that it is, such as a password."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Read the JSON text of a section or a list.

        Raises:
            ValueError: it is not JSON, or has a setting twice.
        """
        decoded = super().decode_complex_value(field_name, field, value)
        if isinstance(decoded, dict | list):
            return parse_json(value)
        return value if isinstance(decoded, bool | int | float) else decoded
