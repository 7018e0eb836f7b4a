"""The expected outcome of every input record: a naive fold, written without looking at the product."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.endtoend.oracle import merged

if TYPE_CHECKING:
    from tests.endtoend.oracle import Seen

_COMMANDS = ("publish", "delta_publish", "sow_delete")


class Update(NamedTuple):
    """One change of one key: the content of the SOW record and the delta of an input record."""

    source: str
    """The input record, `topic/partition/offset`."""
    key: bytes
    version: int
    record: Any
    """The full record after it; None if it is deleted."""


@dataclass
class Expected:
    """The expected outputs of an input topic."""

    updates: dict[int, list[Update]] = field(default_factory=lambda: defaultdict(list))
    """The updates by partition, in order."""
    rejected: dict[str, Seen] = field(default_factory=dict)
    """The expected dead letters, by source."""
    duplicates: int = 0
    nothing: int = 0
    """Number of deletes of missing records."""
    rekeyed: list[Seen] = field(default_factory=list)
    """Records without a Kafka key, which are sent again with the key in their body."""
    world: dict[bytes, Any] = field(default_factory=dict)
    """The state of the world at the end."""


def expect(topic: str, records: list[Seen], *, versions_grow: bool = True) -> Expected:
    """Fold an input topic of default settings: JSON, key `/id`, nulls ignored, nothing expires."""
    expected = Expected()
    versions: dict[bytes, int] = {}
    marks: dict[tuple[int, str], int] = {}
    for message in records:
        source = f"{topic}/{message.partition}/{message.offset}"
        if not is_mergeable(message):
            expected.rejected[source] = message
            continue
        key = message.key
        if key is None:
            expected.rekeyed.append(message)
            continue
        if "sequence" in message.headers:
            # A sequence not above the highest one applied for this client in this partition is a duplicate.
            mark, sequence = (message.partition, message.headers["client"]), int(message.headers["sequence"])
            if sequence <= marks.get(mark, -1):
                expected.duplicates += 1
                continue
            marks[mark] = sequence
        record = _after(expected.world.get(key), message)
        if record is None:
            if key not in versions:
                expected.nothing += 1
                continue
            expected.updates[message.partition].append(Update(source, key, versions.pop(key) + 1, None))
            del expected.world[key]
            continue
        first = 2 * message.offset + 1 if versions_grow else 1
        versions[key] = versions[key] + 1 if key in versions else first
        expected.world[key] = record
        expected.updates[message.partition].append(Update(source, key, versions[key], record))
    return expected


def is_mergeable(message: Seen) -> bool:
    """Return whether a record can be merged."""
    if message.headers.get("command", "publish") not in _COMMANDS:
        return False
    if message.key is not None and (message.value is None or message.headers.get("command") == "sow_delete"):
        return True
    try:
        body = json.loads(message.value or b"")
    except ValueError:
        return False
    if not isinstance(body, dict):
        return False
    if message.key is None:
        return "id" in body
    # A delta may lack its key; a key in its body must equal the record's.
    is_delta = message.headers.get("command", "delta_publish") != "publish"
    return str(body["id"]).encode() == message.key if "id" in body else is_delta


def _after(old: Any, message: Seen) -> Any:
    command = message.headers.get("command", "delta_publish")
    if message.value is None or command == "sow_delete":
        return None
    body = json.loads(message.value)
    return body if command == "publish" else merged(old, body)
