"""A partition's marks: staged, committed, restored, and dropped when there are too many."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.store.marks import (
    MARK_FORGOTTEN,
    ONE_SHOT_FORGOTTEN,
    ONE_SHOT_LIFE_MS,
    OWN_NAMES,
    TransactionalMarks,
)
from processor.wire.publisher_mark import random_name

NAMES = [b"", b"a", b"b", b"c"]
CHANGES = st.lists(st.tuples(st.sampled_from(NAMES), st.binary(max_size=2)), max_size=5)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "prepare", "commit", "rollback", "restore"]), CHANGES),
    min_size=3,
    max_size=20,
)


@settings(max_examples=300, deadline=None, print_blob=True)
@given(STEPS)
def test_they_look_like_one_dict(steps):
    """The marks look like one dict after any steps in any order; a value may be empty."""
    marks = TransactionalMarks()
    staged: dict[bytes, bytes] = {}
    prepared: dict[bytes, bytes] | None = None  # None: no transaction is being committed.
    committed: dict[bytes, bytes] = {}
    position = 0
    for step, changes in steps:
        if step == "put":
            for name, value in changes:
                marks.put(name, value)
            staged |= dict(changes)
        elif step == "prepare" and prepared is None:
            assert dict(marks.staged) == {name: staged[name] for name, _ in marks.staged}
            marks.prepare()
            assert not marks.has_staged
            prepared = dict(staged)
        elif step == "commit" and prepared is not None:
            position += 1
            marks.commit(position)
            committed, prepared = prepared, None
        elif step in ("rollback", "restore"):
            marks.rollback()
            if step == "restore":
                position += 10
                marks.restore(changes, position)
                committed |= dict(changes)
            staged, prepared = dict(committed), None
        assert marks.has_staged == bool(marks.staged)
        assert {name: marks.get(name) for name in NAMES} == {name: staged.get(name) for name in NAMES}
        assert marks.position == position


@pytest.fixture
def under_way() -> TransactionalMarks:
    """Marks with a commit under way, and newer ones."""
    marks = TransactionalMarks()
    marks.restore([(b"a", b"1"), (b"b", b"1")], 5)
    marks.put(b"b", b"2")
    marks.put(b"c", b"2")
    marks.prepare()
    marks.put(b"c", b"")
    marks.put(b"d", b"3")
    return marks


def values(marks: TransactionalMarks) -> list[bytes | None]:
    """The marks that a processor sees."""
    return [marks.get(name) for name in (b"a", b"b", b"c", b"d")]


def test_one_put_while_a_commit_is_under_way_is_seen_first_and_sent_with_the_next(under_way):
    """A mark that is put during a commit is visible at once, and sent with the next transaction; it may be empty."""
    assert values(under_way) == [b"1", b"2", b"", b"3"]
    assert under_way.staged == [(b"c", b""), (b"d", b"3")]
    under_way.commit(8)
    assert values(under_way) == [b"1", b"2", b"", b"3"]
    assert under_way.staged == [(b"c", b""), (b"d", b"3")]
    under_way.rollback()
    assert values(under_way) == [b"1", b"2", b"2", None], "what was prepared is committed"
    assert under_way.position == 8


def test_a_rollback_drops_what_is_being_committed_and_what_came_after_it(under_way):
    """A rollback drops the marks being committed and later ones, as both will be put again."""
    under_way.rollback()
    assert values(under_way) == [b"1", b"1", None, None]
    assert under_way.staged == []
    under_way.prepare()
    under_way.commit(None)
    assert (values(under_way), under_way.position) == ([b"1", b"1", None, None], 5)


def test_one_commit_ends_before_the_next_is_prepared(under_way):
    """A commit must end before the next one is prepared: otherwise its outcome would have two meanings."""
    with pytest.raises(AssertionError):
        under_way.prepare()


def test_what_is_sent_is_the_last_value_of_each_mark_that_was_put():
    """A transaction sends the last value of each mark that was put, once."""
    marks = TransactionalMarks()
    marks.put(b"a", b"1")
    marks.prepare()
    marks.commit(1)
    marks.put(b"b", b"1")
    marks.put(b"b", b"2")
    assert marks.staged == [(b"b", b"2")]
    marks.prepare()
    marks.commit(2)
    assert marks.staged == []


def test_a_commit_without_marks_keeps_the_position():
    """A commit without marks keeps the position in the mark topic."""
    marks = TransactionalMarks()
    marks.restore([(b"a", b"1")], 7)
    marks.prepare()
    marks.commit(None)
    assert marks.position == 7


def test_a_tombstone_in_the_topic_removes_a_mark():
    """A tombstone in the mark topic, written by an operator, removes a mark."""
    marks = TransactionalMarks()
    marks.restore([(b"a", b"1"), (b"b", b"1"), (b"a", None)], 3)
    assert (marks.get(b"a"), marks.get(b"b")) == (None, b"1")


@pytest.mark.parametrize("way", ["commit", "restore"])
def test_beyond_the_bound_those_not_changed_for_longest_are_forgotten(way):
    """Beyond the limit the marks not changed for longest are dropped, the same ones after a restore."""
    marks = TransactionalMarks(names_max=3)
    for position, name in enumerate([b"a", b"b", b"c", b"a", b"d", b"e"]):
        if way == "commit":
            marks.put(name, b"%d" % position)
            marks.prepare()
            marks.commit(position + 1)
        else:
            marks.restore([(name, b"%d" % position)], position + 1)
    assert {name: marks.get(name) for name in (b"a", b"b", b"c", b"d", b"e")} == {
        b"a": b"3",
        b"b": None,
        b"c": None,
        b"d": b"4",
        b"e": b"5",
    }
    assert marks.forgotten == ({MARK_FORGOTTEN: 2} if way == "commit" else {})


def test_those_of_one_commit_are_cut_to_the_bound_at_once():
    """The marks of one commit are reduced to the limit at once, as those of many commits are."""
    marks = TransactionalMarks(names_max=10)
    for number in range(1000):
        marks.put(b"%d" % number, b"1")
    marks.prepare()
    marks.commit(1)
    assert sum(marks.get(b"%d" % number) is not None for number in range(1000)) == 10
    assert (marks.get(b"999"), marks.get(b"989"), marks.forgotten) == (b"1", None, {MARK_FORGOTTEN: 990})


def test_a_forgotten_mark_is_removed_from_the_topic_with_the_next_transaction():
    """A dropped mark is removed from the topic with the next transaction, so that no restore brings it back."""
    marks = TransactionalMarks(names_max=2)
    marks.restore([(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"d", b"1")], 4)
    assert (marks.has_staged, marks.staged) == (False, [])
    marks.put(b"a", b"2")
    assert marks.staged == [(b"a", b"2"), (b"b", None)]
    marks.prepare()
    marks.rollback()
    marks.put(b"c", b"2")
    assert marks.staged[0] == (b"c", b"2")
    assert dict(marks.staged[1:]) == {b"a": None, b"b": None}
    marks.prepare()
    marks.commit(8)
    marks.put(b"e", b"1")
    assert marks.staged == [(b"e", b"1")]


def test_marks_that_are_no_processor_s_are_never_forgotten():
    """The input position, a fence and the base of versions are never dropped, and do not count as the processor's."""
    marks = TransactionalMarks(names_max=2)
    own = [(name, b"%d" % number) for number, name in enumerate(OWN_NAMES)]
    changes = [*own, *((b"%d" % number, b"1") for number in range(5))]
    marks.restore(changes, 7)
    assert [marks.get(name) for name, _ in changes] == [b"0", b"1", b"2", None, None, None, b"1", b"1"]


def commit(marks: TransactionalMarks, *names: bytes, value: bytes = b"1 once") -> None:
    """Put marks of clients, and commit them."""
    for name in names:
        marks.put(b"sequence//" + name, value)
    marks.prepare()
    marks.commit(marks.position + len(names))


def test_names_for_one_occasion_never_displace_a_regular_publisher():
    """However many names with one number come, the mark of a publisher with two numbers stays; what goes is counted."""
    marks = TransactionalMarks(names_max=3, one_shot_names_max=10)
    commit(marks, b"ledger", value=b"7")
    for number in range(0, 1000, 10):
        commit(marks, *(b"%d" % name for name in range(number, number + 10)))
    assert marks.get(b"sequence//ledger") == b"7"
    assert marks.get(b"sequence//999") == b"1 once"
    assert marks.get(b"sequence//989") is None
    assert marks.forgotten == {ONE_SHOT_FORGOTTEN: 990}


def test_a_name_is_regular_from_its_second_number_on():
    """A name that uses another number moves to the regular ones, and is not displaced by later names."""
    marks = TransactionalMarks(one_shot_names_max=2)
    commit(marks, b"ledger")
    commit(marks, b"ledger", value=b"2")
    commit(marks, b"a", b"b", b"c")
    assert (marks.get(b"sequence//ledger"), marks.get(b"sequence//a")) == (b"2", None)


def test_a_random_client_name_stays_one_for_one_occasion():
    """The random name of a client of ours has the small budget, however many numbers it uses."""
    marks = TransactionalMarks(names_max=1, one_shot_names_max=2)
    commit(marks, b"desk", value=b"7")
    commit(marks, *(random_name("desk", f"{number:08x}").encode() for number in (1, 2, 3)), value=b"900")
    assert (marks.get(b"sequence//desk"), marks.get(b"sequence//desk~once-00000001")) == (b"7", None)


@pytest.mark.parametrize("name", [b"ledger-20261127", b"sensor-00000042", b"feed-deadbeef", b"eu/key/rates"])
def test_a_name_that_looks_random_may_be_a_regular_publisher_s(name):
    """No mark goes for the look of its name: not after a day, and not for others that look so; all are bounded."""
    now_ms = 1_700_000_000_000
    marks = TransactionalMarks(names_max=2, one_shot_names_max=2, clock_ms=lambda: now_ms)
    commit(marks, b"desk", value=b"7")
    commit(marks, name, value=b"42")
    now_ms += ONE_SHOT_LIFE_MS + 3_600_000
    commit(marks, b"a-00000001", value=b"7")
    assert (marks.get(b"sequence//desk"), marks.get(b"sequence//" + name)) == (b"7", b"42")
    assert marks.forgotten == {}
    commit(marks, b"a-00000002", value=b"7")
    assert (marks.get(b"sequence//desk"), marks.get(b"sequence//" + name)) == (b"7", None)
    assert marks.forgotten == {MARK_FORGOTTEN: 1}


@pytest.mark.parametrize("way", ["kept", "restored"])
def test_a_name_for_one_occasion_lives_for_a_day(way):
    """A day after its last change the mark goes, without being counted as forgotten; a regular one stays."""
    now_ms = 1_700_000_000_000
    marks = TransactionalMarks(clock_ms=lambda: now_ms)
    commit(marks, b"once")
    commit(marks, b"ledger", value=b"7")
    if way == "restored":
        marks = TransactionalMarks(clock_ms=lambda: now_ms)
        marks.restore([(b"sequence//once", b"1 once"), (b"sequence//ledger", b"7")], 2, now_ms)
    now_ms += ONE_SHOT_LIFE_MS - 1
    commit(marks, b"other")
    assert marks.get(b"sequence//once") == b"1 once"
    now_ms += 1
    commit(marks, b"another")
    assert (marks.get(b"sequence//once"), marks.get(b"sequence//ledger"), marks.forgotten) == (None, b"7", {})
    marks.put(b"sequence//ledger", b"8")
    assert marks.staged == [(b"sequence//ledger", b"8"), (b"sequence//once", None)]


def test_marks_are_bounded_in_bytes():
    """Marks with long lists of refused numbers are dropped beyond the limit of bytes, the oldest first."""
    marks = TransactionalMarks()
    value = b"1 refused=" + b"9" * 1024 * 1024
    commit(marks, *(b"%d" % name for name in range(70)), value=value)
    assert 60 <= sum(marks.get(b"sequence//%d" % name) is not None for name in range(70)) < 64
    assert marks.get(b"sequence//69") == value
    assert marks.get(b"sequence//0") is None


def test_the_marks_of_the_runtime_are_never_dropped():
    """A mark whose name begins with NUL has no budget."""
    marks = TransactionalMarks(names_max=1)
    marks.restore([(b"\0sowstream/%d" % number, b"1") for number in range(5)], 5)
    commit(marks, b"a", b"b", value=b"7")
    assert [marks.get(b"\0sowstream/%d" % number) for number in range(5)] == [b"1"] * 5
