"""Finds fields that a new version of an Avro schema has lost: a partial schema may be registered by mistake."""

from __future__ import annotations

import json


def lost_fields(former: str, latest: str) -> list[str]:
    """The fields at the top level of a record that its next version does not have, as they stand in the former one.

    Args:
        former: an Avro schema, as JSON.
        latest: the next version of it.
    """
    names, left = _names(former), _names(latest)
    return [name for name in names if name not in left]


def _names(text: str) -> list[str]:
    """The names and aliases of the fields; none if it is no record."""
    try:
        schema = json.loads(text)
    except ValueError:
        return []
    fields = schema.get("fields") if isinstance(schema, dict) else None
    found = [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
    return [str(name) for field in found for name in (field.get("name"), *(field.get("aliases") or ())) if name]
