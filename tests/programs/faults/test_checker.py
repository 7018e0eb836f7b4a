"""The checker finds every kind of fault in a worker's outputs, and none in correct outputs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.endtoend.oracle import Seen
from tests.programs.faults import histories
from tests.programs.faults.checker import Evidence, account
from tests.programs.faults.expected import expect
from tests.programs.faults.load import commands

if TYPE_CHECKING:
    from collections.abc import Callable

PUBLISHED = Path(__file__).with_name("published")
_NAME = "t"
_PARTITIONS = 4


def _evidence(seed: int = 5, count: int = 2_000, keys: int = 50) -> Evidence:
    """The outputs of a worker without fault for a load."""
    inputs: list[Seen] = []
    ends = [0] * _PARTITIONS

    def take(key: bytes | None, value: bytes | None, headers: dict[str, str]) -> None:
        partition = sum(key or b"") % _PARTITIONS
        inputs.append(Seen(partition, ends[partition], key, value, headers))
        ends[partition] += 1

    for key, value, headers in commands(seed, count, keys):
        take(key, value, headers)
        if key is None:
            take(str(json.loads(value or b"")["id"]).encode(), value, headers)
    inputs.sort(key=lambda message: (message.partition, message.offset))
    expected = expect(f"{_NAME}.publish", inputs)
    sow, delta = [], []
    for partition, updates in expected.updates.items():
        before: dict[bytes, Any] = {}
        for offset, update in enumerate(updates):
            headers = {"version": str(update.version), "source": update.source}
            value = None if update.record is None else json.dumps(update.record).encode()
            delta_value, more = value, {"kind": "insert"} if update.record is not None else {}
            if update.record is None:
                more = {"kind": "delete"}
            elif update.key in before:
                changed, removed = _difference(before[update.key], update.record)
                delta_value, more = json.dumps(changed).encode(), {"removed": json.dumps(removed)} if removed else {}
            before[update.key] = update.record
            if update.record is None:
                del before[update.key]
            sow.append(Seen(partition, offset, update.key, value, headers))
            delta.append(Seen(partition, offset, update.key, delta_value, headers | more))
    dlq = [
        Seen(
            message.partition,
            offset,
            message.key,
            message.value,
            message.headers | {"source": source, "dlq_reason": "bad"},
        )
        for offset, (source, message) in enumerate(expected.rejected.items())
    ]
    return Evidence(_NAME, inputs, sow, delta, dlq)


def _difference(old: dict[str, Any], new: dict[str, Any], path: str = "") -> tuple[dict[str, Any], list[str]]:
    """The delta between two records: changed fields, and pointers to removed ones."""
    changed: dict[str, Any] = {}
    removed = [f"{path}/{name}" for name in old if name not in new]
    for name, value in new.items():
        if name in old and isinstance(old[name], dict) and isinstance(value, dict):
            within, gone = _difference(old[name], value, f"{path}/{name}")
            removed += gone
            if within:
                changed[name] = within
        elif name not in old or old[name] != value:
            changed[name] = value
    return changed, removed


def _headers(record: Seen, **changes: str) -> Seen:
    return record._replace(headers=record.headers | changes)


def _in_the_middle(records: list[Seen], accept: Callable[[Seen], bool] = lambda _: True) -> int:
    return next(place for place in range(len(records) // 2, len(records)) if accept(records[place]))


def _lose(role: str) -> Callable[[Evidence], None]:
    def lose(evidence: Evidence) -> None:
        records = getattr(evidence, role)
        del records[_in_the_middle(records)]

    return lose


def _repeat(role: str) -> Callable[[Evidence], None]:
    def repeat(evidence: Evidence) -> None:
        records = getattr(evidence, role)
        place = _in_the_middle(records)
        records.insert(place, records[place])

    return repeat


def _swap(role: str) -> Callable[[Evidence], None]:
    def swap(evidence: Evidence) -> None:
        records = getattr(evidence, role)
        place = next(
            place
            for place in range(len(records) // 2, len(records))
            if records[place].partition == records[place + 1].partition
        )
        records[place], records[place + 1] = records[place + 1], records[place]

    return swap


def _change(role: str, change: Callable[[Seen], Seen]) -> Callable[[Evidence], None]:
    def changed(evidence: Evidence) -> None:
        records = getattr(evidence, role)
        place = _in_the_middle(records, lambda record: record.value is not None)
        records[place] = change(records[place])

    return changed


def _next_version(record: Seen) -> Seen:
    return _headers(record, version=str(int(record.headers["version"]) + 1))


def _other_value(record: Seen) -> Seen:
    return record._replace(value=b'{"id": "other"}')


def _other_kind(record: Seen) -> Seen:
    body = json.loads(record.value or b"")
    return record._replace(value=json.dumps(body | {"n": float(body["n"])}).encode())


def _reject_a_good_one(evidence: Evidence) -> None:
    good = next(message for message in evidence.inputs if message.key is not None and message.value is not None)
    source = f"{_NAME}.publish/{good.partition}/{good.offset}"
    evidence.dlq.append(good._replace(headers={"source": source, "dlq_reason": "plugin_failed", "dlq_detail": "-"}))


def _merge_a_duplicate(evidence: Evidence) -> None:
    """Merge a repeated sequence: one more SOW record and delta."""
    seen: set[tuple[int, str]] = set()
    for message in evidence.inputs:
        if (mark := (message.partition, message.headers.get("sequence", ""))) in seen and mark[1]:
            source = f"{_NAME}.publish/{message.partition}/{message.offset}"
            duplicate = message._replace(offset=10**6, headers={"version": "999", "source": source})
            evidence.sow.append(duplicate)
            evidence.delta.append(duplicate)
            return
        seen.add(mark)


def _send_again_twice(evidence: Evidence) -> None:
    """Send a record without a key again twice, and merge it twice in order: only `trace` reveals it."""
    original = next(message for message in evidence.inputs if message.key is None)
    copy = next(
        message
        for message in evidence.inputs
        if message.key and message.headers.get("trace") == original.headers["trace"]
    )
    evidence.inputs.append(copy._replace(offset=10**6))


_BUGS: dict[str, tuple[Callable[[Evidence], None], str]] = {
    "a delta is lost": (_lose("delta"), "lost in t.delta: 1"),
    "a SOW record is lost": (_lose("sow"), "lost in t.sow: 1"),
    "an update is lost in both": (lambda e: (_lose("sow")(e), _lose("delta")(e))[0], "lost in t.sow: 1"),
    "a dead letter is lost": (_lose("dlq"), "lost in t.dlq: 1"),
    "a delta is told twice": (_repeat("delta"), "told twice in t.delta: 1"),
    "a SOW record is told twice": (_repeat("sow"), "told twice in t.sow: 1"),
    "a dead letter is told twice": (_repeat("dlq"), "told twice in t.dlq: 1"),
    "two SOW records change places": (_swap("sow"), "out of order in t.sow: 1"),
    "two deltas change places": (_swap("delta"), "out of order in t.delta: 1"),
    "a version is skipped": (_change("delta", _next_version), "wrong version in t.delta: 1"),
    "a version of SOW is skipped": (_change("sow", _next_version), "wrong version in t.sow: 1"),
    "a SOW record is another": (_change("sow", _other_value), "wrong record in t.sow: 1"),
    "a number of SOW is of another kind": (_change("sow", _other_kind), "wrong record in t.sow: 1"),
    "a number of a delta is of another kind": (_change("delta", _other_kind), "wrong record in t.delta"),
    "a delta says something else": (_change("delta", _other_value), "wrong record in t.delta"),
    "a dead letter is another": (_change("dlq", _other_value), "another record than its source in t.dlq: 1"),
    "a good record is rejected": (_reject_a_good_one, "rejected though it is good in t.dlq: 1"),
    "a duplicate is merged": (_merge_a_duplicate, "of no input record in t.sow: 1"),
    "a record is sent again twice": (_send_again_twice, "sent again 2 times in t.publish: 1"),
}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_correct_outputs_have_no_complaint(guarantee: Any) -> None:
    """Correct outputs have no complaint, and records of every outcome are counted once."""
    figures, wrong = account(_evidence(), guarantee=guarantee)
    assert wrong == []
    fates = (figures.updates, figures.rejected, figures.duplicates, figures.nothing, figures.rekeyed)
    assert all(fates)
    assert sum(fates) == figures.inputs


@pytest.mark.parametrize("bug", _BUGS)
def test_every_bug_is_reported_by_its_kind(bug: str) -> None:
    """The checker names a bug that affects one record of two thousand."""
    evidence = _evidence()
    harm, complaint = _BUGS[bug]
    harm(evidence)
    _, wrong = account(evidence)
    assert any(complaint in line for line in wrong), wrong


def test_at_least_once_allows_repeated_outputs_and_nothing_else() -> None:
    """Under at_least_once, a run of outputs with the same content may repeat; a changed or lost one is a complaint."""
    evidence = _evidence()
    for role in ("delta", "dlq"):
        records = getattr(evidence, role)
        middle = len(records) // 2
        records[middle + 20 : middle + 20] = records[middle : middle + 20]
    figures, wrong = account(evidence, guarantee="at_least_once")
    assert wrong == []
    assert figures.repeats == 20 + 18
    _, wrong = account(evidence)
    assert any("told twice in t.delta: 20" in line for line in wrong), wrong

    place = _in_the_middle(evidence.delta, lambda record: record.value is not None)
    evidence.delta.insert(place + 1, _other_value(evidence.delta[place]))
    _, wrong = account(evidence, guarantee="at_least_once")
    assert any("told again otherwise in t.delta: 1" in line for line in wrong), wrong
    _lose("delta")(again := _evidence())
    _, wrong = account(again, guarantee="at_least_once")
    assert any("lost in t.delta: 1" in line for line in wrong), wrong


def test_a_run_without_records_proves_nothing() -> None:
    """A run without input records is a discrepancy, although its empty outputs are equal to the expected ones."""
    _, wrong = account(Evidence(_NAME, [], [], [], []))
    assert any("proves nothing" in line for line in wrong), wrong


def test_outputs_without_sources_are_identified_by_key_and_version() -> None:
    """Outputs of a topic that does not write header `source` are compared by key and version."""
    evidence = _evidence()
    for records in (evidence.sow, evidence.delta):
        records[:] = [
            record._replace(headers={name: value for name, value in record.headers.items() if name != "source"})
            for record in records
        ]
    assert account(evidence)[1] == []
    del evidence.delta[random.Random(1).randrange(len(evidence.delta))]
    assert any("lost in t.delta: 1" in line for line in account(evidence)[1])


def test_a_history_gives_the_same_records_again(tmp_path: Path) -> None:
    """Also keys and values that are no text, and those that are missing."""
    evidence = _evidence()
    evidence.inputs.append(Seen(3, 10**6, b"\xff\x00", None, {"trace": "é"}, 7))
    histories.write(tmp_path / "h.xz", evidence, seed=5, guarantee="exactly_once", figures="all", wrong=["a"])
    head, read = histories.read(tmp_path / "h.xz")
    assert read == evidence
    assert head == {"name": _NAME, "seed": 5, "guarantee": "exactly_once", "account": "all", "wrong": ["a"],
                    "versions_grow": True}  # fmt: skip


def test_a_history_is_judged_by_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict is found again from the records, not taken from the file."""
    good, bad = tmp_path / "good.xz", tmp_path / "bad.xz"
    evidence = _evidence()
    histories.write(good, evidence, seed=5, guarantee="exactly_once", figures="", wrong=["was wrong"])
    del evidence.sow[20]
    histories.write(bad, evidence, seed=5, guarantee="exactly_once", figures="", wrong=[])
    monkeypatch.setattr("sys.argv", ["histories", str(good)])
    assert histories.main() == 0
    monkeypatch.setattr("sys.argv", ["histories", str(good), str(bad)])
    assert histories.main() == 1
    assert "bad.xz: WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["clocks", *(pytest.param(name, marks=pytest.mark.long) for name in ("each-role", "rolling-restarts"))]
)
def test_a_published_history_is_right(name: str) -> None:
    """The checker of today finds the same account in it, and nothing wrong."""
    head, evidence = histories.read(PUBLISHED / f"{name}.jsonl.xz")
    figures, wrong = account(evidence, guarantee=head["guarantee"], versions_grow="versions_grow" in head)
    assert (str(figures), wrong) == (head["account"], head["wrong"])
    assert not wrong
