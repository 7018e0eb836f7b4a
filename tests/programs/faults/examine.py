"""Compares the outputs of the workers, record by record, with the expected ones."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.endtoend.oracle import Seen, applied, remove

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tests.programs.faults.expected import Expected, Update

_EXAMPLES_MAX = 3


@dataclass
class Complaints:
    """The complaints: the number and the first few examples of each kind."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, example: str) -> None:
        """Add one complaint."""
        self.counts[kind] += 1
        if len(self.examples[kind]) < _EXAMPLES_MAX:
            self.examples[kind].append(example)

    def include(self, other: Complaints) -> None:
        """Add all complaints of another examination."""
        self.counts.update(other.counts)
        for kind, examples in other.examples.items():
            self.examples[kind] = (self.examples[kind] + examples)[:_EXAMPLES_MAX]

    def lines(self) -> list[str]:
        """The complaints as lines for people: `lost in t.delta: 3, such as key 5 version 7 (t.publish/2/45); ...`."""
        return [f"{kind}: {count}, such as {'; '.join(self.examples[kind])}" for kind, count in self.counts.items()]


class OutputExam:
    """Examines one output topic, SOW or delta, against the updates that it must contain."""

    def __init__(self, topic: str, expected: Expected, complaints: Complaints, *, may_repeat: bool) -> None:
        """Prepare the examination.

        Args:
            topic: its name, for the complaints.
            expected: the outputs that must be in it.
            complaints: the collection of complaints.
            may_repeat: whether the same update may occur again, with the same content.
        """
        self.repeats = 0
        self._topic = topic
        self._expected = expected
        self._complaints = complaints
        self._may_repeat = may_repeat

    def run(self, records: list[Seen]) -> list[Seen]:
        """Check presence, order and version of every update; returns the records without repeats."""
        by_partition: dict[int, list[Seen]] = defaultdict(list)
        for record in self._first(records):
            by_partition[record.partition].append(record)
        for partition in sorted(self._expected.updates.keys() | by_partition.keys()):
            self._partition(partition, by_partition[partition])
        return [record for partition in sorted(by_partition) for record in by_partition[partition]]

    def _first(self, records: list[Seen]) -> list[Seen]:
        if not self._may_repeat:
            return records
        first: dict[str, Seen] = {}
        for record in records:
            earlier = first.get(record.headers["source"])
            if earlier is None:
                first[record.headers["source"]] = record
                continue
            self.repeats += 1
            if (earlier.key, earlier.value, earlier.headers) != (record.key, record.value, record.headers):
                self._complaints.add(f"told again otherwise in {self._topic}", _describe(record))
        return list(first.values())

    def _partition(self, partition: int, records: list[Seen]) -> None:
        updates = self._expected.updates.get(partition, [])
        # Records with the header `source` are identified by it; others by key and version.
        has_sources = all("source" in record.headers for record in records)
        wanted = [_expected_identity(update, has_sources=has_sources) for update in updates]
        actual = [_actual_identity(record, has_sources=has_sources) for record in records]
        missing, extra = Counter(wanted), Counter(actual)
        missing.subtract(actual)
        extra.subtract(wanted)
        by_name = dict(zip(wanted, updates, strict=True))
        for name, count in missing.items():
            if count > 0:
                self._complaints.add(f"lost in {self._topic}", _name(by_name[name]))
        seen = {name: record for name, record in zip(actual, records, strict=True) if extra[name] > 0}
        for name, record in seen.items():
            kind = "told twice in" if name in by_name else "of no input record in"
            self._complaints.add(f"{kind} {self._topic}", _describe(record))
        if wanted != actual and sorted(map(repr, wanted)) == sorted(map(repr, actual)):
            place = next(place for place, pair in enumerate(zip(wanted, actual, strict=True)) if pair[0] != pair[1])
            self._complaints.add(
                f"out of order in {self._topic}", f"{_describe(records[place])} instead of {_name(updates[place])}"
            )
        if has_sources:
            for name, record in zip(actual, records, strict=True):
                if name in by_name and by_name[name].version != int(record.headers["version"]):
                    self._complaints.add(
                        f"wrong version in {self._topic}", f"{_describe(record)} instead of {by_name[name].version}"
                    )


def compare_records(topic: str, records: list[Seen], expected: Expected, complaints: Complaints) -> None:
    """Check that each SOW record with a source is the full record after that update."""
    updates = by_source(expected)
    for record in records:
        update = updates.get(record.headers.get("source", ""))
        value = None if record.value is None else json.loads(record.value)
        if update is not None and not is_same(value, update.record):
            complaints.add(f"wrong record in {topic}", _differs(record, value, update))


def compare_sow(topic: str, records: list[Seen], expected: Expected, complaints: Complaints) -> dict[bytes, Any]:
    """Compare the state of the world in a SOW topic with the expected one, and return it."""
    world: dict[bytes, Any] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            world.pop(record.key, None)
        else:
            world[record.key] = record.value
    world = {key: json.loads(value) for key, value in world.items()}
    _compare(f"{topic} is not the fold of the input", world, expected.world, complaints)
    return world


def replay(topic: str, records: list[Seen], sow: dict[bytes, Any], expected: Expected, complaints: Complaints) -> None:
    """Apply the deltas as a subscriber would, each to its base version; the result must equal SOW."""
    updates = by_source(expected)
    world: dict[bytes, Any] = {}
    versions: dict[bytes, int] = {}
    for record in records:
        key, headers = record.key or b"", record.headers
        version = int(headers["version"])
        otherwise = 0 if headers.get("kind") == "insert" else version - 1
        base, met = int(headers.get("delta_base", otherwise)), versions.get(key, 0)
        if base != met:
            kind = "version repeated in" if base < met else "version gap in"
            complaints.add(f"{kind} {topic}", f"{_describe(record)} is for version {base} and met {met}")
        if headers.get("kind") in ("delete", "expire"):
            world.pop(key, None)
            versions.pop(key, None)
            continue
        versions[key] = version
        world[key] = applied(world.get(key, {}), json.loads(record.value or b""))
        for pointer in json.loads(headers.get("removed", "[]")):
            try:
                remove(world[key], pointer)
            except (KeyError, TypeError):
                complaints.add(f"removes what is not there in {topic}", f"{_describe(record)}: {pointer}")
        update = updates.get(headers.get("source", ""))
        if update is not None and not is_same(world[key], update.record):
            complaints.add(f"wrong record in {topic}", _differs(record, world[key], update))
    _compare(f"replay of {topic} is not SOW", world, sow, complaints)


def examine_dlq(
    topic: str, letters: list[Seen], expected: Expected, complaints: Complaints, *, may_repeat: bool
) -> int:
    """Check that each bad record is one unchanged dead letter, and no good one is; returns the number of repeats."""
    letter_counts = Counter(letter.headers["source"] for letter in letters)
    repeats = 0
    for source, message in expected.rejected.items():
        if source not in letter_counts:
            complaints.add(f"lost in {topic}", f"{source} {message.value!r:.60}")
    for source, count in letter_counts.items():
        if source in expected.rejected and count > 1:
            repeats += count - 1
            if not may_repeat:
                complaints.add(f"told twice in {topic}", source)
    for letter in letters:
        message = expected.rejected.get(letter.headers["source"])
        if message is None:
            complaints.add(f"rejected though it is good in {topic}", _rejection(letter))
        elif (message.key, message.value) != (letter.key, letter.value):
            complaints.add(f"another record than its source in {topic}", _rejection(letter))
    return repeats


def examine_rekeyed(topic: str, records: list[Seen], expected: Expected, complaints: Complaints, *, once: bool) -> None:
    """Check that every record without a Kafka key is sent again; the header `trace` of a publisher identifies it."""
    copies = Counter(
        record.headers["trace"] for record in records if record.key is not None and "trace" in record.headers
    )
    for message in expected.rekeyed:
        count = copies[message.headers["trace"]] if "trace" in message.headers else 1
        place = f"{topic}/{message.partition}/{message.offset}"
        if count == 0:
            complaints.add(f"never sent again with its key in {topic}", place)
        elif count > 1 and once:
            complaints.add(f"sent again {count} times in {topic}", place)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same, kinds of scalars included: to Python 1, 1.0 and true are equal."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _compare(what: str, actual: dict[bytes, Any], wanted: dict[bytes, Any], complaints: Complaints) -> None:
    for key in sorted(actual.keys() | wanted.keys()):
        if not is_same(actual.get(key), wanted.get(key)):
            complaints.add(what, f"key {_text(key)}: {actual.get(key)!r:.200} instead of {wanted.get(key)!r:.200}")


def _expected_identity(update: Update, *, has_sources: bool) -> Hashable:
    return update.source if has_sources else (update.key, update.version)


def _actual_identity(record: Seen, *, has_sources: bool) -> Hashable:
    return record.headers["source"] if has_sources else (record.key, int(record.headers["version"]))


def by_source(expected: Expected) -> dict[str, Update]:
    """The updates by the input record that they come from."""
    return {update.source: update for updates in expected.updates.values() for update in updates}


def _differs(record: Seen, actual: Any, update: Update) -> str:
    return f"{_describe(record)} is {actual!r:.200} instead of {update.record!r:.200}"


def _name(update: Update) -> str:
    return f"key {_text(update.key)} version {update.version} ({update.source})"


def _describe(record: Seen) -> str:
    source = record.headers.get("source")
    place = f"partition {record.partition} offset {record.offset}" + (f", of {source}" if source else "")
    return f"key {_text(record.key or b'')} version {record.headers['version']} ({place})"


def _rejection(letter: Seen) -> str:
    return f"{letter.headers['source']} as {letter.headers.get('dlq_reason')}: {letter.headers.get('dlq_detail')}"


def _text(key: bytes) -> str:
    return key.decode(errors="replace")
