"""The golden files of every released version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from tests.golden.record_file import read_records

if TYPE_CHECKING:
    from processor.record import Record

HERE: Final = Path(__file__).parent
VERSIONS: Final = sorted(path.parent.name for path in HERE.glob("*/made.json"))
"""The versions that have golden files."""
NEWEST: Final = VERSIONS[-1]
"""The version whose bytes the writers of this checkout must still write."""
BEFORE_LIVES: Final = frozenset(("0.1.0",))
"""The versions in whose topics each life of a key begins at version 1 again."""


def topic_names(version: str) -> list[str]:
    """Return the names of a version's topics."""
    return sorted(path.stem for path in (HERE / version).glob("*.*.jsonl") if path.stem != "messages")


def golden_topic(version: str, name: str) -> list[Record]:
    """Return the records of a topic as a version wrote them."""
    return read_records(HERE / version / f"{name}.jsonl")


def golden_messages(version: str) -> list[Record]:
    """Return the messages of a version, one for each message type."""
    return read_records(HERE / version / "messages.jsonl")


def golden_texts(version: str) -> dict[str, str]:
    """Return the texts of a version by name."""
    return cast("dict[str, str]", json.loads((HERE / version / "texts.json").read_text(encoding="utf-8")))


def packed(version: str, name: str) -> Path:
    """Return the packed directory of this name."""
    return HERE / version / f"{name}.tar.gz"
