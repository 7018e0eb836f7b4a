"""Tests with the data of nst/JSONTestSuite, if it is next to the checkout, through a worker."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.endtoend.oracle import Seen

PARSING = Path(__file__).parents[3] / "shared" / "suites" / "json" / "parsing"

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(not PARSING.is_dir(), reason=f"the JSON suite is not at {PARSING}"),
]


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create a topic whose records need no key in their body."""
    made = World(bootstrap, tmp_path, unique, key="explicit", default_command="publish", dlq_max_ratio=1)
    yield made
    made.close()


def test_each_file_of_the_suite_is_merged_or_rejected(world: World) -> None:
    """`y_` is accepted, `n_` rejected, `i_` either way; accepted values are in SOW with every digit."""
    files = {file.name: file.read_bytes() for file in sorted(PARSING.iterdir())}
    assert len(files) == 318
    # As a record, and as a value in one: most of the files are no objects.
    whole: list[tuple[bytes | None, Any, dict[str, str]]] = [(name.encode(), data, {}) for name, data in files.items()]
    inside: list[tuple[bytes | None, Any, dict[str, str]]] = [
        (b"in " + name.encode(), b'{"v":' + data + b"}", {})
        for name, data in files.items()
        if not name.startswith("n_")
    ]
    world.publish(whole + inside)
    worker = world.start()
    world.settle()

    merged = {_key(record): record.value for record in world.read("sow")}
    letters = {_key(letter): letter.headers["dlq_reason"] for letter in world.read("dlq")}
    assert len(merged) + len(letters) == len(whole) + len(inside)
    for name in files:
        if name.startswith("n_"):
            assert letters[name] in ("undecodable", "too_deep"), name
        elif name.startswith("y_"):
            assert f"in {name}" in merged, f"{name}: {letters.get(f'in {name}')}"
            assert name in merged or letters[name] == "not_an_object", name
    for key, value in merged.items():
        name = key.removeprefix("in ")
        sent = files[name] if key == name else b'{"v":' + files[name] + b"}"
        assert _parse(value) == _parse(sent), key
    assert worker.process.poll() is None, worker.log()


def _key(record: Seen) -> str:
    assert record.key is not None
    return record.key.decode()


def _parse(data: bytes | None) -> str:
    """Parse a value exactly: numbers with their digits, distinct from strings."""
    value = json.loads(data or b"", parse_float=lambda digits: ["float", _digits(digits)])
    return json.dumps(value, sort_keys=True)


def _digits(digits: str) -> str:
    """Normalise a number: `1e2`, `1.0E+2` and `100.0` are equal; Decimal's own method rounds."""
    sign, significant, exponent = Decimal(digits).as_tuple()
    text = "".join(map(str, significant)).lstrip("0")
    short = text.rstrip("0")
    return f"{'-' * sign}{short}e{int(exponent) + len(text) - len(short) if short else 0}"
