"""Each check of the audit finds its faults, and no check complains of correct evidence."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install 'sowstream[spark]'")

from tests.programs.faults.examine import Complaints
from tests.programs.pipeline import checks, faultless
from tests.programs.pipeline.evidence import Archived, Misfit, Work
from tests.programs.pipeline.layout import BROKEN
from tests.programs.pipeline.trouble_checks import ALL

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.programs.pipeline.evidence import Evidence

_SEED = 7


@functools.cache
def _faultless() -> Evidence:
    return faultless.evidence(_SEED, 600, 20)


@pytest.fixture
def evidence() -> Evidence:
    """Evidence that a test may damage; its rows are immutable."""
    one = _faultless()
    lists = ("archive", "table", "history", "quarantine", "typed", "typed_misfits", "depth_misfits", "keyless")
    copies: dict[str, Any] = {name: [*getattr(one, name)] for name in lists} | {"work": {**one.work}}
    return replace(one, topics={name: [*records] for name, records in one.topics.items()}, **copies)


def _audit(evidence: Evidence, *names: str) -> dict[str, list[str]]:
    """The complaints by the name of the check: of all checks, or of the named ones."""
    wrong = {}
    for check in ALL:
        if not names or check.name in names:
            complaints = Complaints()
            check.run(evidence, complaints)
            wrong[check.name] = complaints.lines()
    return {name: lines for name, lines in wrong.items() if lines}


def test_a_pipeline_without_fault_has_nothing_wrong(evidence: Evidence) -> None:
    """The model's evidence has no complaints, and each kind of row, record and version occurs in it."""
    assert _audit(evidence) == {}
    assert len(evidence.quarantine) > 10
    assert {row.reason for row in evidence.quarantine} == {"undecodable", "not_an_object", "missing_key", "misfit"}
    assert len(evidence.typed_misfits) > len(evidence.depth_misfits) > 0
    assert sum(row.to_ms is not None for row in evidence.history) > 300
    assert len({row.version for row in evidence.history}) > 20
    assert sum(record.headers.get("kind") == "delete" for record in evidence.of("delta")) > 10
    assert len(evidence.of("dlq")) > 1
    assert ", 0 repeats" not in checks.published(evidence, Complaints())


def _middle(rows: list[Any], accept: Callable[[Any], bool] = lambda _: True) -> int:
    """The place of a row in the second half of a list."""
    return next(place for place in range(len(rows) // 2, len(rows)) if accept(rows[place]))


def _drop(rows: list[Any], accept: Callable[[Any], bool] = lambda _: True) -> None:
    del rows[_middle(rows, accept)]


def _double(rows: list[Any], accept: Callable[[Any], bool] = lambda _: True) -> None:
    rows.append(rows[_middle(rows, accept)])


def _change(rows: list[Any], accept: Callable[[Any], bool] = lambda _: True, **fields: Any) -> None:
    place = _middle(rows, accept)
    rows[place] = rows[place]._replace(**fields)


def _is_ingested(record: Any) -> bool:
    return record.headers["client"] != "desk" and int(record.headers["sequence"]) > 0


def _is_update(record: Any) -> bool:
    return record.headers.get("kind") is None and record.value is not None


def _is_first_of_repeats(evidence: Evidence) -> Callable[[Any], bool]:
    counts: dict[tuple[str, str], int] = {}
    for record in evidence.of("publish"):
        identity = record.headers["client"], record.headers["sequence"]
        counts[identity] = counts.get(identity, 0) + 1
    return lambda record: _is_ingested(record) and counts[record.headers["client"], record.headers["sequence"]] > 1


def _lose_all_of_a_row(evidence: Evidence) -> None:
    """Remove a row from the publish topic and from everything behind it, as if it had never been sent."""
    records = evidence.of("publish")
    victim = records[_middle(records, _is_ingested)]
    number = json.loads(victim.value or b"")["n"]
    evidence.topics["orders.publish"] = [record for record in records if checks._number(record) != number]


def _send_under_another_identity(evidence: Evidence) -> None:
    _change(
        evidence.of("publish"), _is_first_of_repeats(evidence), headers={"client": "app.files/2/0", "sequence": "9"}
    )


def _swap_rows_of_a_key(evidence: Evidence) -> None:
    records = evidence.of("publish")
    first = _middle(records, lambda record: record.headers["client"] == "app.files/1/0")
    one = records[first]
    second = next(
        place
        for place in range(first + 1, len(records))
        if records[place].key == one.key
        and records[place].headers["client"] == one.headers["client"]
        and records[place].headers["sequence"] != one.headers["sequence"]
    )
    other = records[second]
    records[first] = one._replace(value=other.value, headers=other.headers)
    records[second] = other._replace(value=one.value, headers=one.headers)


def _restore_old_value(evidence: Evidence) -> None:
    """Give a row of the table the record and version of an earlier version."""
    rows = evidence.table
    place = _middle(rows, lambda row: row.version > 3)
    old = next(row for row in evidence.history if row.key == rows[place].key and row.version == rows[place].version - 1)
    rows[place] = rows[place]._replace(version=old.version, record=old.record)


def _old_sow(evidence: Evidence) -> None:
    """Lose the last update of a key in the SOW topic."""
    records = evidence.of("sow")
    last = {record.key: place for place, record in enumerate(records)}
    place = next(place for place in last.values() if records[place].value is not None)
    del records[place]


def _wrong_base(evidence: Evidence) -> None:
    place = _middle(evidence.of("delta"), _is_update)
    record = evidence.of("delta")[place]
    version = {"version": str(int(record.headers["version"]) + 1)}
    evidence.of("delta")[place] = record._replace(headers=record.headers | version)


def _lose_a_feature(evidence: Evidence) -> None:
    sow = evidence.of("sow", "depth")
    evidence.topics["depth.sow"] = [record for record in sow if record.key != sow[0].key]


def _archive_without_last_delta(evidence: Evidence) -> None:
    last = {row.record.key: place for place, row in enumerate(evidence.archive) if row.topic == "orders.delta"}
    del evidence.archive[next(place for place in last.values() if _is_update(evidence.archive[place].record))]


FAULTS: dict[str, tuple[str, Callable[[Evidence], None]]] = {
    "a row that was never published": ("published", _lose_all_of_a_row),
    "a row under two identities": ("published", _send_under_another_identity),
    "a row that was not in the input": (
        "published",
        lambda e: _change(e.of("publish"), _is_ingested, value=b'{"id":1,"n":999999}'),
    ),
    "a row under the key of another": ("published", lambda e: _change(e.of("publish"), _is_ingested, key=b"other")),
    "rows of a key out of order": ("order", _swap_rows_of_a_key),
    "a lost SOW record": ("merged", lambda e: _drop(e.of("sow"))),
    "an old record in SOW": ("merged", _old_sow),
    "a lost delta": ("deltas", lambda e: _drop(e.of("delta"), _is_update)),
    "a doubled delta": ("deltas", lambda e: _double(e.of("delta"), _is_update)),
    "a gap in the versions": ("merged", _wrong_base),
    "a lost dead letter": ("merged", lambda e: _drop(e.of("dlq"))),
    "an offset missing in the archive": ("archive", lambda e: _drop(e.archive)),
    "an offset twice in the archive": ("archive", lambda e: _double(e.archive)),
    "another date in the archive": ("archive", lambda e: _change(e.archive, date="2020-01-01")),
    "an archived record that is on no topic": (
        "archive",
        lambda e: e.archive.append(e.archive[0]._replace(record=e.archive[0].record._replace(offset=10**6))),
    ),
    "another value in the archive": (
        "archive",
        lambda e: _change(e.archive, record=e.archive[_middle(e.archive)].record._replace(value=b"{}")),
    ),
    "a delta missing in the archive": (
        "replay",
        _archive_without_last_delta,
    ),
    "a row missing in the table": ("table", lambda e: _drop(e.table)),
    "a row twice in the table": ("table", lambda e: _double(e.table)),
    "an old record in the table": ("table", _restore_old_value),
    "a deleted record in the table": ("table", lambda e: e.table.append(e.table[0]._replace(key="gone"))),
    "a version missing in the history": ("history", lambda e: _drop(e.history)),
    "a version twice in the history": ("history", lambda e: _double(e.history)),
    "a wrong valid_to": ("history", lambda e: _change(e.history, lambda row: row.to_ms is not None, to_ms=7)),
    "an ended version that is open": ("history", lambda e: _change(e.history, lambda row: row.to_ms, to_ms=None)),
    "another record of a version": ("history", lambda e: _change(e.history, record={"id": 1})),
    "a number that became a text": (
        "history",
        lambda e: _change(e.history, record=e.history[_middle(e.history)].record | {"item": 1}),
    ),
    "a row missing in the quarantine": ("quarantine", lambda e: _drop(e.quarantine)),
    "a row twice in the quarantine": ("quarantine", lambda e: _double(e.quarantine)),
    "another reason in the quarantine": ("quarantine", lambda e: _change(e.quarantine, reason="other")),
    "a good row in the quarantine": ("quarantine", lambda e: _change(e.quarantine, line=10**6)),
    "a feature that was not published": ("features", _lose_a_feature),
    "an old feature": (
        "features",
        lambda e: e.topics.update({"depth.sow": [r for r in e.of("sow", "depth") if r.headers["version"] == "1"]}),
    ),
    "a feature of no group": (
        "features",
        lambda e: e.of("sow", "depth").append(e.of("sow", "depth")[0]._replace(key=b"none")),
    ),
    "a feature published again without a change": (
        "changes",
        lambda e: _double_under_a_new_identity(e.of("publish", "depth")),
    ),
    "a doubled delta of a feature": ("features-merged", lambda e: _double(e.of("delta", "depth"))),
    "a note cut at its line break": (
        "notes",
        lambda e: _change(e.of("sow", "notes"), lambda r: b"two" in r.value, value=b'{"id": 1, "note": "two"}'),
    ),
    "a lost CSV row": ("notes", lambda e: _drop(e.of("sow", "notes"))),
    "a CSV row merged twice": ("notes", lambda e: _double(e.of("delta", "notes"))),
    "an old number of a note": (
        "no-key",
        lambda e: _change(e.of("sow", "counts"), value=b'{"id": "plain", "lines": 1}'),
    ),
    "a group without a key that is nowhere": ("no-key", lambda e: e.keyless.clear()),
    "an old state of the group without a key": ("no-key", lambda e: _drop(e.keyless)),
    "a group without a key set aside without a change": ("no-key", lambda e: _double(e.keyless)),
    "a group with a key set aside": ("no-key", lambda e: e.keyless.append({"id": "é", "lines": 1})),
    "a row missing in the table with columns": ("typed", lambda e: _drop(e.typed)),
    "a row twice in the table with columns": ("typed", lambda e: _double(e.typed)),
    "a column of another record": ("typed", lambda e: e.typed.append(e.typed.pop() | {"n": -1})),
    "a record that does not fit and is nowhere": ("typed", lambda e: _drop(e.typed_misfits)),
    "a record set aside twice": ("typed", lambda e: _double(e.typed_misfits)),
    "a record that fits set aside": ("typed", lambda e: e.typed_misfits.append(Misfit(0, 10**6, "1"))),
    "a misfit of the features that is nowhere": ("misfits", lambda e: _drop(e.depth_misfits)),
    "a misfit of the features set aside twice": ("misfits", lambda e: _double(e.depth_misfits)),
    "a record of the features set aside that fits": (
        "misfits",
        lambda e: e.depth_misfits.append(Misfit(0, 10**6, "1")),
    ),
    "a failing job that is not tried again": ("failing", lambda e: e.work.update({BROKEN: Work([], 1)})),
    "a failing job that has completed a micro-batch": ("failing", lambda e: e.work.update({BROKEN: Work([1.0], 5)})),
    "another job that stands still": ("failing", lambda e: e.work.update(counts=Work([], 0))),
}


def _double_under_a_new_identity(records: list[Any]) -> None:
    last = records[-1]
    records.append(last._replace(offset=last.offset + 1, headers=last.headers | {"sequence": "1000000"}))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_check(evidence: Evidence, fault: str) -> None:
    """The evidence is damaged in one place, and the check for that promise complains."""
    name, damage = FAULTS[fault]
    damage(evidence)
    assert name in _audit(evidence, name)


def test_a_record_that_spark_has_written_again_is_allowed_only_where_spark_has_merged(evidence: Evidence) -> None:
    """A repeat with the same content is no fault of Spark's merge; one with another content is."""
    for role in ("sow", "delta"):
        records = evidence.of(role)
        # A micro-batch is repeated as a whole, so that the last record of each key stays the last one.
        batch = [record for record in records if record.partition == 2][-20:]
        end = batch[-1].offset + 1
        records += [record._replace(offset=end + place) for place, record in enumerate(batch)]
        records.sort(key=lambda record: (record.partition, record.offset))
    evidence.archive = [row for row in evidence.archive if row.topic != "orders.delta"]
    date = evidence.archive[0].date
    evidence.archive += [Archived("orders.delta", record, date) for record in evidence.of("delta")]
    faultless.read_orders(evidence)
    assert "merged" in _audit(evidence, "merged")
    evidence.may_repeat = True
    assert _audit(evidence) == {}
    last = evidence.of("sow")
    place = _middle(last, lambda record: record.partition == 2 and record.offset >= end)
    last[place] = last[place]._replace(value=b'{"id":0}')
    assert "merged" in _audit(evidence, "merged")
