"""What must become of every input record: a naive fold in partition order, written without looking at the product."""

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
    """One change of one key: what SOW and delta must tell of an input record."""

    source: str
    """The input record, `topic/partition/offset`."""
    key: bytes
    version: int
    record: Any
    """The whole record after it; None: there is none any more."""


@dataclass
class Expected:
    """What must come of an input."""

    updates: dict[int, list[Update]] = field(default_factory=lambda: defaultdict(list))
    """By partition, in order."""
    rejected: dict[str, Seen] = field(default_factory=dict)
    """What must be in the DLQ, by source."""
    duplicates: int = 0
    nothing: int = 0
    """Deletes of what is not there."""
    rekeyed: list[Seen] = field(default_factory=list)
    """Records without a Kafka key, which are sent again with the key of their body."""
    world: dict[bytes, Any] = field(default_factory=dict)
    """The state of the world in the end."""


def expect(topic: str, records: list[Seen]) -> Expected:
    """Fold an input topic of default settings: JSON, key `/id`, nulls ignored, nothing expires."""
    expected = Expected()
    versions: dict[bytes, int] = {}
    marks: dict[tuple[int, str], int] = {}
    for given in records:
        source = f"{topic}/{given.partition}/{given.offset}"
        if not is_good(given):
            expected.rejected[source] = given
            continue
        key = given.key
        if key is None:
            expected.rekeyed.append(given)
            continue
        if "sequence" in given.headers:
            # Not above the highest one taken of this client in this partition: a duplicate.
            mark, sequence = (given.partition, given.headers["client"]), int(given.headers["sequence"])
            if sequence <= marks.get(mark, 0):
                expected.duplicates += 1
                continue
            marks[mark] = sequence
        record = _after(expected.world.get(key), given)
        if record is None:
            if key not in versions:
                expected.nothing += 1
                continue
            expected.updates[given.partition].append(Update(source, key, versions.pop(key) + 1, None))
            del expected.world[key]
            continue
        versions[key] = versions.get(key, 0) + 1
        expected.world[key] = record
        expected.updates[given.partition].append(Update(source, key, versions[key], record))
    return expected


def is_good(given: Seen) -> bool:
    """Whether a record can be merged at all."""
    if given.headers.get("command", "publish") not in _COMMANDS:
        return False
    if given.key is not None and (given.value is None or given.headers.get("command") == "sow_delete"):
        return True
    try:
        body = json.loads(given.value or b"")
    except ValueError:
        return False
    if not isinstance(body, dict):
        return False
    if given.key is None:
        return "id" in body
    # A delta may leave its key out; one that has it must agree.
    is_delta = given.headers.get("command", "delta_publish") != "publish"
    return str(body["id"]).encode() == given.key if "id" in body else is_delta


def _after(old: Any, given: Seen) -> Any:
    command = given.headers.get("command", "delta_publish")
    if given.value is None or command == "sow_delete":
        return None
    body = json.loads(given.value)
    return body if command == "publish" else merged(old, body)
