"""The demo's publications are valid by `schemas/`, which is maintained separately."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from processor.trial.demo.feeds import OrderDesk, PriceFeed, Publication

SCHEMAS = Path(__file__).parents[2] / "schemas"
FEEDS = {"order": OrderDesk, "price": PriceFeed}


def faults(record: str, publication: Publication, value: Any) -> list[str]:
    """The schema errors of a publication: a full publish is a full record, every other one a delta."""
    schema = json.loads((SCHEMAS / f"{record}.schema.json").read_text(encoding="utf-8"))
    if publication.command != "publish":
        schema = {"$ref": "#/$defs/delta", "$defs": schema["$defs"]}
    return [error.message for error in Draft202012Validator(schema).iter_errors(value)]


def known_fields(record: str) -> set[str]:
    """The fields in the schema, nested ones as `outer/inner`."""
    properties = json.loads((SCHEMAS / f"{record}.schema.json").read_text(encoding="utf-8"))["$defs"]["delta"][
        "properties"
    ]
    inner = {f"{name}/{field}" for name, schema in properties.items() for field in schema.get("properties", ())}
    return set(properties) | inner


def fields(value: dict[str, Any]) -> set[str]:
    """The fields of a value, nested ones as `outer/inner`."""
    inner = {f"{name}/{field}" for name, item in value.items() if isinstance(item, dict) for field in item}
    return set(value) | inner


@pytest.mark.parametrize("seed", [20261])
@pytest.mark.parametrize("record", sorted(FEEDS))
def test_everything_published_is_valid_and_every_field_occurs(record: str, seed: int) -> None:
    """Each of two thousand publications is valid, and together they have all fields of the schema and no others."""
    feed = FEEDS[record](Random(seed))
    seen: set[str] = set()
    for _ in range(2_000):
        publication = feed.next()
        if publication.value is None:
            continue
        try:
            value = json.loads(publication.value)
        except ValueError:
            continue  # The desk sometimes sends a broken order, for the dead-letter topic.
        assert faults(record, publication, value) == [], value
        seen |= fields(value)
    assert seen == known_fields(record)
