"""The audit: each check compares evidence with the rows of the feed, and shares no code with the product."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.endtoend.oracle import Seen, applied, remove
from tests.programs.faults.checker import Evidence as FamilyEvidence
from tests.programs.faults.checker import account
from tests.programs.faults.examine import Complaints, is_same
from tests.programs.faults.expected import expect
from tests.programs.pipeline.rows import fits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.programs.faults.checker import Guarantee
    from tests.programs.pipeline.evidence import Evidence

_GONE: Final = ("delete", "expire")


class Check(NamedTuple):
    """One promise of the pipeline."""

    name: str
    """A word or two with hyphens."""
    promise: str
    """One line for the table."""
    run: Callable[[Evidence, Complaints], str]
    """Adds complaints, and returns the figures."""


def published(evidence: Evidence, complaints: Complaints) -> str:
    """Each good row is published under one identity with its own text and key, and no other row is."""
    good = {row.number: row for row in evidence.ledger.good.values()}
    identities: dict[tuple[str, str], Seen] = {}
    numbers: dict[int, tuple[str, str]] = {}
    repeats = 0
    for record in evidence.of("publish"):
        identity = record.headers["client"], record.headers["sequence"]
        if identity[0] == "desk":
            continue
        first = identities.setdefault(identity, record)
        if first is not record:
            repeats += 1
            if (first.key, first.value) != (record.key, record.value):
                complaints.add("two rows under one identity", f"{_place(first)} and {_place(record)}: {identity}")
            continue
        number = json.loads(record.value or b"{}").get("n")
        row = good.get(number)
        if row is None or row.text is None or not is_same(json.loads(row.text), json.loads(record.value or b"")):
            complaints.add("published, but not of the input", f"{_place(record)} {record.value!r:.100}")
        elif record.key != str(json.loads(row.text)["id"]).encode():
            complaints.add("published under another key", f"{_place(record)} {record.key!r}")
        elif numbers.setdefault(number, identity) != identity:
            complaints.add("sent twice under two identities", f"row {number}: {numbers[number]} and {identity}")
    for number in good.keys() - numbers.keys():
        complaints.add("never published", f"row {number} {good[number].text!r:.100}")
    return f"{len(numbers):,} rows, {repeats:,} repeats"


def in_order(evidence: Evidence, complaints: Complaints) -> str:
    """The rows of a key in the files are published in the order of the files and their lines."""
    # Numbers grow from line to line, and each way has numbers of its own.
    of_files = {row.number for (_, _), row in _of_files(evidence)}
    last: dict[bytes, int] = {}
    seen: set[tuple[str, str]] = set()
    for record in evidence.of("publish"):
        identity = record.headers["client"], record.headers["sequence"]
        if identity in seen:
            continue
        seen.add(identity)
        number = _number(record)
        if number is not None and number in of_files and record.key is not None:
            if number <= last.get(record.key, 0):
                complaints.add("out of order", f"{_place(record)}: row {number} after row {last[record.key]}")
            last[record.key] = number
    return f"{len(last):,} keys"


def merged_orders(evidence: Evidence, complaints: Complaints) -> str:
    """SOW and delta topic have each update of the publish topic once, in order, versions without gap."""
    return merged(evidence, evidence.orders, complaints)


def merged_depth(evidence: Evidence, complaints: Complaints) -> str:
    """The same of the topic of the features."""
    return merged(evidence, evidence.depth, complaints)


def delta_of_each_row(evidence: Evidence, complaints: Complaints) -> str:
    """Each good row is in one delta: none is lost, and none is merged twice."""
    good = evidence.ledger.good
    # A delta has the number of its row, as no two rows have the same one.
    counts = Counter(number for delta in _once(evidence, "delta") if (number := _number(delta)) in good)
    for number in good.keys() - counts.keys():
        complaints.add("no delta", f"row {number} {good[number].text!r:.100}")
    for number, count in counts.items():
        if count > 1:
            complaints.add("more than one delta", f"row {number}: {count}")
    return f"{len(counts):,} rows"


def archive_complete(evidence: Evidence, complaints: Complaints) -> str:
    """The archive has each committed record of the publish and delta topics once, unchanged, under its date."""
    topics = [f"{evidence.orders}.{role}" for role in ("publish", "delta")]
    left = {(topic, seen.partition, seen.offset): seen for topic in topics for seen in evidence.topics[topic]}
    counts: Counter[tuple[str, int, int]] = Counter()
    for topic, record, date in evidence.archive:
        place = topic, record.partition, record.offset
        counts[place] += 1
        if place not in left:
            complaints.add("archived, but not on the topic", f"{place}")
        elif record != left[place]:
            complaints.add("archived otherwise", f"{place}: {record!r:.200} instead of {left[place]!r:.200}")
        elif date != datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).date().isoformat():
            complaints.add("archived under another date", f"{place}: {date}")
    for place in left.keys() - counts.keys():
        complaints.add("not archived", f"{place}")
    for place, count in counts.items():
        if count > 1:
            complaints.add("archived more than once", f"{place}: {count}")
    return f"{len(evidence.archive):,} records"


def archive_replay(evidence: Evidence, complaints: Complaints) -> str:
    """The archive alone gives the SOW topic: its publish topic merged, and its delta topic replayed."""
    sow = {key: record for key, (_, record) in state_of(evidence.of("sow")).items()}
    by_topic: dict[str, list[Seen]] = defaultdict(list)
    for topic, record, _ in evidence.archive:
        by_topic[topic].append(record)
    for records in by_topic.values():
        records.sort(key=lambda record: (record.partition, record.offset))
    merged = expect("archive", by_topic[f"{evidence.orders}.publish"]).world
    compare("merged from the archive", {key.decode(): record for key, record in merged.items()}, sow, complaints)
    deltas = _first_of(by_topic[f"{evidence.orders}.delta"]) if evidence.may_repeat else None
    versions = _versions(by_topic[f"{evidence.orders}.delta"] if deltas is None else deltas)
    replayed = {key: rows[-1].record for key, rows in versions.items() if rows[-1].to_ms is None}
    compare("replayed from the archive", replayed, sow, complaints)
    return f"{len(sow):,} records"


def table_is_sow(evidence: Evidence, complaints: Complaints) -> str:
    """The table has the records of the SOW topic, with their versions."""
    rows: dict[str, tuple[int, Any]] = {}
    for key, version, record in evidence.table:
        if key in rows:
            complaints.add("two rows of a key in the table", key)
        rows[key] = version, record
    compare("in the table", rows, state_of(evidence.of("sow")), complaints)
    return f"{len(rows):,} rows"


def history_is_fold(evidence: Evidence, complaints: Complaints) -> str:
    """The table of versions has one row for each version of the delta topic, valid until the next one."""
    wanted: Counter[_Comparable] = Counter()
    for key, versions in _versions(_once(evidence, "delta")).items():
        wanted.update(_Comparable(key, one.version, one.from_ms, one.to_ms, _text(one.record)) for one in versions)
    actual = Counter(_Comparable(*row[:4], _text(row.record)) for row in evidence.history)
    left = {(row.key, row.version, row.from_ms): row for row in wanted - actual}
    for row in actual - wanted:
        expected = left.pop((row.key, row.version, row.from_ms), None)
        shown = f"key {row.key} version {row.version} from {row.from_ms}"
        if expected is None:
            kind = "a version twice" if row in wanted else "not a version of the delta topic"
            complaints.add(kind, shown)
        elif row.to_ms != expected.to_ms:
            complaints.add("valid until another time", f"{shown} until {row.to_ms}, not {expected.to_ms}")
        else:
            complaints.add("another record", f"{shown}: {row.text:.200} instead of {expected.text:.200}")
    for row in left.values():
        complaints.add("a version is missing", f"key {row.key} version {row.version} from {row.from_ms}")
    return f"{wanted.total():,} versions"


def quarantine_accounted(evidence: Evidence, complaints: Complaints) -> str:
    """Each row that does not fit is in the quarantine once, with its reason and text, and no other row is."""
    bad = evidence.ledger.bad
    counts: Counter[tuple[str, int]] = Counter()
    for file, line, reason, text in evidence.quarantine:
        place, row = (file, line), bad.get((file, line))
        counts[place] += 1
        if row is None:
            complaints.add("quarantined, but it fits", f"{file}:{line} {text!r:.100}")
        elif (reason, text) != (row.reason, row.text):
            complaints.add("quarantined otherwise", f"{file}:{line}: {reason} {text!r:.60}, not {row.reason}")
    for place in bad.keys() - counts.keys():
        complaints.add("not in the quarantine", f"{place[0]}:{place[1]} {bad[place].reason}")
    for place, count in counts.items():
        if count > 1:
            complaints.add("more than once in the quarantine", f"{place[0]}:{place[1]}: {count}")
    return f"{len(counts):,} rows"


def features_are_sql(evidence: Evidence, complaints: Complaints) -> str:
    """The features are those that SQLite computes of the final state, by the same query."""
    columns = ("id", "n", "item", "qty", "px")
    with sqlite3.connect(":memory:") as database:
        database.execute(f"CREATE TABLE {evidence.orders} (id INTEGER, n INTEGER, item TEXT, qty INTEGER, px REAL)")
        records = [record for _, record in state_of(evidence.of("sow")).values()]
        rows = [tuple(record.get(name) for name in columns) for record in records if fits(record)]
        database.executemany(f"INSERT INTO {evidence.orders} VALUES (?, ?, ?, ?, ?)", rows)
        cursor = database.execute(evidence.query)
        names = [column[0] for column in cursor.description]
        wanted = {row[0]: dict(zip(names, row, strict=True)) for row in cursor}
    database.close()
    actual = {key: record for key, (_, record) in state_of(evidence.of("sow", evidence.depth)).items()}
    # A null of the query may be a null or a missing field of the record.
    without = {key: _without_nulls(row) for key, row in wanted.items()}
    compare("of the features", {key: _without_nulls(record) for key, record in actual.items()}, without, complaints)
    return f"{len(wanted):,} groups, {len(evidence.of('publish', evidence.depth)):,} published"


def only_changes_published(evidence: Evidence, complaints: Complaints) -> str:
    """A published feature differs from the one before it, unless it is the same message again."""
    state: dict[bytes, Any] = {}
    seen: set[tuple[str | None, str | None]] = set()
    changes = 0
    for record in evidence.of("publish", evidence.depth):
        identity = record.headers.get("client"), record.headers.get("sequence")
        if identity in seen or record.key is None:
            continue
        seen.add(identity)
        before = state.get(record.key)
        is_delete = record.value is None or record.headers.get("command") == "sow_delete"
        after = None
        if not is_delete:
            # Of a delta the fields that are null stay as they were.
            is_whole = record.headers.get("command") == "publish"
            body = json.loads(record.value or b"{}")
            after = body if is_whole else {**(before or {}), **_without_nulls(body)}
        if before == after:
            complaints.add("published without a change", f"{_place(record)} {record.value!r:.100}")
        state[record.key] = after
        changes += 1
    return f"{changes:,} changes"


CHECKS: Final = (
    Check("published", "each good row published under one identity, no other row", published),
    Check("order", "the rows of a key in the order of the files", in_order),
    Check("merged", "SOW and deltas: each update once, in order, versions without gap", merged_orders),
    Check("deltas", "no row lost, none twice behind the workers", delta_of_each_row),
    Check("archive", "every offset of publish and delta topics once, unchanged", archive_complete),
    Check("replay", "archive merged = archive replayed = SOW", archive_replay),
    Check("table", "scd1 table = SOW", table_is_sow),
    Check("history", "scd2 table = versions of the delta topic", history_is_fold),
    Check("quarantine", "each bad row once, with its reason and place", quarantine_accounted),
    Check("features", "features = SQL over the final state", features_are_sql),
    Check("changes", "features published only where they changed", only_changes_published),
    Check("features-merged", "features' SOW and deltas: each update once, in order", merged_depth),
)
"""The checks, in the order of the table."""


class _Comparable(NamedTuple):
    """A row of the table of versions, comparable by kinds of scalars too."""

    key: str
    version: int
    from_ms: int
    to_ms: int | None
    text: str


class _Version(NamedTuple):
    version: int
    from_ms: int
    to_ms: int | None
    record: Any


def merged(evidence: Evidence, family: str, complaints: Complaints) -> str:
    """The topics of a family have each update once, in order, versions without gap."""
    topics = [evidence.of(role, family) for role in ("publish", "sow", "delta", "dlq")]
    guarantee: Guarantee = "at_least_once" if evidence.may_repeat else "exactly_once"
    figures, wrong = account(FamilyEvidence(family, *topics), guarantee=guarantee)
    for line in wrong:
        complaints.add(*line.split(": ", 1))
    repeats = f", {figures.repeats:,} outputs repeated by Spark" if figures.repeats else ""
    return f"{figures.updates:,} updates of {figures.keys:,} keys, {figures.duplicates:,} duplicates dropped{repeats}"


def _versions(deltas: Iterable[Seen]) -> dict[str, list[_Version]]:
    """The versions of each key, by a fold of its deltas."""
    versions: dict[str, list[_Version]] = defaultdict(list)
    for delta in deltas:
        of_key = versions[(delta.key or b"").decode()]
        record: Any = {}
        if of_key and of_key[-1].to_ms is None:
            record = of_key[-1].record
            of_key[-1] = of_key[-1]._replace(to_ms=delta.timestamp_ms)
        if delta.headers.get("kind") in _GONE:
            continue
        if removed := json.loads(delta.headers.get("removed", "[]")):
            record = json.loads(json.dumps(record))  # The version before keeps its members.
        record = applied(record, json.loads(delta.value or b""))
        for pointer in removed:
            remove(record, pointer)
        of_key.append(_Version(int(delta.headers["version"]), delta.timestamp_ms, None, record))
    return {key: of_key for key, of_key in versions.items() if of_key}


def state_of(sow: Iterable[Seen]) -> dict[str, tuple[int, Any]]:
    """The version and the record of each key in a SOW topic."""
    last: dict[str, Seen] = {(record.key or b"").decode(): record for record in sow}
    return {
        key: (int(record.headers["version"]), json.loads(record.value))
        for key, record in last.items()
        if record.value is not None
    }


def _once(evidence: Evidence, role: str) -> list[Seen]:
    """The records of a role without those that Spark has written again."""
    return _first_of(evidence.of(role)) if evidence.may_repeat else evidence.of(role)


def _first_of(records: Iterable[Seen]) -> list[Seen]:
    first: dict[str, Seen] = {}
    for record in records:
        first.setdefault(record.headers["source"], record)
    return list(first.values())


def _of_files(evidence: Evidence) -> Iterable[tuple[tuple[str, int], Any]]:
    return (entry for entry in evidence.ledger.rows.items() if entry[0][0].endswith(".json"))


def _number(record: Seen) -> int | None:
    """The number of the row in a record; None in a delete and a bad record."""
    try:
        body = json.loads(record.value or b"")
    except ValueError:
        return None
    return body.get("n") if isinstance(body, dict) else None


def _text(record: Any) -> str:
    return json.dumps(record, sort_keys=True)


def _without_nulls(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


def compare(place: str, actual: Mapping[str, Any], wanted: Mapping[str, Any], complaints: Complaints) -> None:
    """Complain of each key whose value is missing, too much or different."""
    for key in sorted(actual.keys() | wanted.keys()):
        if not is_same(actual.get(key), wanted.get(key)):
            kind = "missing" if key not in actual else "too much" if key not in wanted else "different"
            shown = f"{actual.get(key)!r:.200} instead of {wanted.get(key)!r:.200}"
            complaints.add(f"{kind} {place}", f"key {key}: {shown}")


def _place(record: Seen) -> str:
    return f"partition {record.partition} offset {record.offset}"
