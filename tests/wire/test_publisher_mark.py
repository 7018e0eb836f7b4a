"""The mark of a publisher: numbers that were taken, refused, forwarded and forgotten, against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.errors import RecordRejected
from processor.wire.publisher_mark import (
    FIRST_MAX,
    RANGES_MAX,
    TEXT_BYTES_MAX,
    PublisherMark,
    is_one_shot,
    is_reserved,
    mark_record,
    mark_text,
)

NUMBER_MAX = 2**63 - 1
STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "take", "take", "refuse", "refuse", "pass", "reread"]), st.integers(0, 25)),
    max_size=60,
)


class Naive:
    """The outcome of each number, and the pairs of refused numbers without an outcome between them."""

    def __init__(self) -> None:
        self.settled: dict[int, str] = {}
        self.gaps: list[tuple[int, int]] = []

    def highest(self, *kinds: str) -> int:
        """The highest number of such kinds."""
        return max((number for number, kind in self.settled.items() if kind in kinds), default=-1)

    def is_taken(self, number: int) -> bool:
        """Return whether a number counts as taken: it is not above the highest one, and it was not refused."""
        if number > self.highest("taken") or self.settled.get(number) == "refused":
            return False
        return number in self.settled or not any(low < number < high for low, high in self.gaps)

    def refuse(self, number: int) -> None:
        """Note a refusal, and that nothing lies between it and the one before."""
        if self.is_taken(number) or self.settled.get(number) == "refused":
            return
        below = max((one for one, kind in self.settled.items() if kind == "refused" and one < number), default=None)
        if below is not None and below > self.highest("taken", "passed"):
            self.gaps.append((below, number))
        self.settled[number] = "refused"


@settings(max_examples=300, deadline=None, print_blob=True)
@given(STEPS)
def test_a_mark_knows_what_was_taken_and_what_was_refused(steps):
    """After any steps, read back or not, each number that was taken is a duplicate, and no refused one is."""
    mark, naive = PublisherMark(), Naive()
    for step, number in steps:
        is_known = naive.is_taken(number)
        assert mark.is_duplicate(number, 0) is is_known, (step, number)
        if step == "reread":
            mark = PublisherMark(mark.text())
        elif step == "take" and not is_known:
            mark.accept(number)
            naive.settled[number] = "taken"
        elif step == "refuse" and number > naive.highest("taken", "passed"):
            mark.refuse(number)
            naive.refuse(number)
        elif step == "pass" and number > naive.highest("taken", "passed"):
            assert mark.pass_on(number) is (
                naive.settled.get(number) == "refused"
                or (naive.settled.get(number) is None and any(low < number < high for low, high in naive.gaps))
            )
            if naive.settled.get(number) == "refused" or any(kind == "refused" for kind in naive.settled.values()):
                naive.settled[number] = "passed"
    assert PublisherMark(mark.text()).text() == mark.text()
    assert [mark.is_duplicate(number, 0) for number in range(27)] == [naive.is_taken(number) for number in range(27)]


def marked(*taken: int, refused: tuple[int, ...] = ()) -> PublisherMark:
    """A mark after some numbers, in their order."""
    mark = PublisherMark()
    for number in sorted((*taken, *refused)):
        if number in refused:
            mark.refuse(number)
        else:
            mark.accept(number)
    return mark


def test_refused_numbers_are_ranges():
    """Refused numbers between two that were taken are one range; a mended number splits it."""
    mark = marked(1, 7, refused=(2, 4, 6))
    assert mark.refused == [(2, 6)]
    mark.accept(4)
    assert mark.refused == [(2, 3), (5, 6)]
    assert mark.text() == b"7 refused=2+1,2+1"


def test_a_mark_of_an_older_version_is_read():
    """Plain digits are the highest number that was taken, and nothing is known to be refused."""
    mark = PublisherMark(b"105")
    assert (mark.highest, mark.refused, mark.unknown, mark.is_once) == (105, [], None, False)
    assert mark.text() == b"105"


def test_an_older_version_reads_the_highest_number():
    """The value of the record is the highest number, in digits; the rest is a header, which that version ignores."""
    text = marked(1, 3, refused=(2,)).text()
    name, value, headers = mark_record(b"sequence//desk", text)
    assert (name, value, headers) == (b"sequence//desk", b"3", [("numbers", b"refused=2")])
    assert mark_text(name, value, headers) == text
    assert mark_record(b"sequence//desk", b"3") == (b"sequence//desk", b"3", [])
    assert mark_text(b"sequence//desk", b"3", []) == b"3"


def test_other_marks_are_written_as_they_are():
    """A mark that is no publisher's keeps its bytes, also those after a space."""
    assert mark_record(b"compared", b"a b") == (b"compared", b"a b", [])
    assert mark_text(b"compared", b"a b", [("numbers", b"c")]) == b"a b"
    assert mark_record(b"sequence//desk", None) == (b"sequence//desk", None, [])


def test_a_list_that_is_too_long_loses_its_lowest_numbers_and_says_so():
    """Numbers that are no longer listed are rejected; those below and above them are known as before."""
    count = RANGES_MAX + 3
    mark = marked(*range(1, 2 * count, 2), 2 * count + 1, refused=tuple(range(2, 2 * count + 1, 2)))
    assert (len(mark.refused), mark.unknown) == (RANGES_MAX, (2, 6))
    assert mark.is_duplicate(1, 0)
    for number in range(2, 7):
        with pytest.raises(RecordRejected, match=f"whether it was taken is not known.*above {2 * count + 1}"):
            mark.is_duplicate(number, 0)
    assert mark.is_duplicate(7, 0)
    assert not mark.is_duplicate(8, 0)
    assert PublisherMark(mark.text()).unknown == (2, 6)


def test_the_longest_mark_is_bounded():
    """A list of ranges of the longest numbers, the first of them without a mark before it, is short enough."""
    first = 10**18
    numbers = range(first, first + 8 * (RANGES_MAX + 9) * 10**15, 8 * 10**15)
    mark = PublisherMark()
    for number in numbers:
        mark.refuse(number)
        mark.refuse(number + 2 * 10**15)
        mark.accept(number + 3 * 10**15)
    assert len(mark.refused) == RANGES_MAX
    assert 5_000 < len(mark.text()) < TEXT_BYTES_MAX


@pytest.mark.parametrize(
    ("highest", "number", "jump_max", "is_taken"),
    [
        (5, 15, 10, True),
        (5, 16, 10, False),
        (5, NUMBER_MAX, 0, True),
        (5, NUMBER_MAX, FIRST_MAX, False),
        (5, 1_764_000_000_000_000_000, FIRST_MAX, True),
        (-1, 1_764_000_000_000_000_000, 10, True),
        (-1, NUMBER_MAX, 10, False),
        (-1, NUMBER_MAX, 0, True),
        (0, NUMBER_MAX, NUMBER_MAX, True),
    ],
)
def test_a_number_may_be_only_so_far_above_the_highest_one(highest, number, jump_max, is_taken):
    """A number beyond the limit is rejected; the first number of a client may be any below half of all numbers."""
    mark = marked(*([] if highest < 0 else [highest]))
    if is_taken:
        assert not mark.is_duplicate(number, jump_max)
        return
    with pytest.raises(RecordRejected, match="sequence_jump_max") as refused:
        mark.is_duplicate(number, jump_max)
    assert (str(highest) if highest >= 0 else "nothing of this client was taken") in refused.value.detail


@pytest.mark.parametrize(
    ("name", "text", "is_one_shot_name"),
    [
        (b"sequence//desk", marked(1).text(), True),
        (b"sequence//desk", marked(1, 2).text(), False),
        (b"sequence//desk", marked(refused=(1,)).text(), True),
        (b"sequence//desk", marked(2, refused=(1,)).text(), False),
        (b"sequence//desk", b"1", False),
        (b"sequence//desk~once-0f3c9a1e", b"7", True),
        (b"sequence/moved-3/a/desk~once-0f3c9a1e", b"7", True),
        (b"sequence//desk~once-0f3c9a1e2", b"7", False),
        (b"sequence//desk-0f3c9a1e", b"7", False),
        (b"sequence//ledger-20261127", b"7", False),
        (b"sequence//eu/key/rates", b"7", False),
        (b"sequence//ann/key/0f-3c/" + b"0f" * 16, b"7", True),
        (b"sequence//key/7", b"7", False),
        (b"note/x-0f3c9a1e", b"7 once", False),
    ],
)
def test_names_for_one_occasion_are_recognised(name, text, is_one_shot_name):
    """One number only, the random names of our clients, and idempotency keys; not a name of a publisher's choice."""
    assert is_one_shot(name, text) is is_one_shot_name
    if name.startswith(b"sequence/"):
        assert is_reserved(name.split(b"/", 2)[2].decode()) is (is_one_shot_name and b"once" not in text)
    assert PublisherMark(text).text() == text


def test_a_mended_number_is_still_one_number():
    """A client whose only number was refused and then taken has used one number."""
    mark = marked(refused=(3,))
    mark.accept(3)
    assert (mark.is_once, mark.text()) == (True, b"3 once")
    mark.refuse(4)
    assert mark.text() == b"3 refused=4"
