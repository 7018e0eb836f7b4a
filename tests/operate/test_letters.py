"""The contents and formats of a dead letter, its selection, and the input record it becomes."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.api import Input, Output, RecordProcessor, RecordRejected, Settings
from processor.cli.dlq import VALUE_BYTES_MAX, as_json, as_row
from processor.operate.waiting_letters import LetterSelection, survey
from processor.record import Record
from processor.testing import ProcessorTestDriver
from processor.wire.dead_letter import DeadLetter, input_record, read_letter


class Refusing(RecordProcessor):
    """A processor that rejects everything."""

    input = Input("publish", from_underlying=False)
    outputs = (Output("sow"),)

    def process_record(self, record):
        """Reject it."""
        raise RecordRejected("key_mismatch", "no")


NAMES = st.sampled_from(["trace", "source", "dlq_reason", "dlq_detail", "command", "sequence"])
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=5)), max_size=8)


def a_letter(value: bytes | None = b"{}", key: bytes | None = b"k", *, offset: int = 7, **headers: bytes) -> DeadLetter:
    """A dead letter of partition 2."""
    added = {"dlq_reason": b"undecodable", "dlq_detail": b"no", "source": b"orders.publish/2/5"}
    return read_letter(2, Record(key, value, list((headers | added).items()), offset, 1_700_000_000_123))


@given(key=st.none() | st.binary(max_size=5), value=st.none() | st.binary(max_size=5), headers=HEADERS)
def test_the_input_record_comes_back_as_it_was(key, value, headers):
    """Only the worker's own headers are removed, and one header names the place of the dead letter."""
    driver = ProcessorTestDriver(Refusing, Settings(), name="orders", partition=2)
    driver.pipe_input(key, value, headers)
    driver.commit()
    (rejected,) = driver.read_output("dlq")
    letter = read_letter(2, rejected)
    assert (letter.reason, letter.detail, letter.source) == ("key_mismatch", "no", "orders.publish/2/0")
    assert letter.headers == headers
    assert input_record(letter, "orders.dlq") == (key, value, [*headers, ("replay_of", b"orders.publish/2/0")])


def test_a_record_that_is_replayed_again_names_its_last_source_only():
    """A second replay replaces the header of the first one."""
    letter = a_letter(replay_of=b"orders.publish/2/1", trace=b"x")
    assert input_record(letter, "orders.dlq")[2] == [("trace", b"x"), ("replay_of", b"orders.publish/2/5")]


def test_a_letter_without_a_source_gets_one():
    """The source of a letter without one, as a person may write it, is its own place."""
    letter = read_letter(2, Record(b"k", b"{}", None, 7, 0))
    assert (letter.reason, letter.detail, letter.source) == (None, None, None)
    assert input_record(letter, "orders.dlq") == (b"k", b"{}", [("replay_of", b"orders.dlq/2/7")])
    assert json.loads(as_json(letter))["reason"] is None
    assert len(as_row(letter)) == 7


def test_the_line_of_a_letter():
    """The line has the place, time and reason of the rejection, and the message."""
    assert json.loads(as_json(a_letter(trace=b"1"))) == {
        "partition": 2,
        "offset": 7,
        "timestamp": "2023-11-14T22:13:20.123Z",
        "key": "k",
        "reason": "undecodable",
        "detail": "no",
        "source": "orders.publish/2/5",
        "headers": {"trace": "1"},
        "bytes": 2,
        "value": {},
    }


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b'{"n":18446744073709551616.00}', '"value":{"n":18446744073709551616.00}'),
        (b'{"id":1,"id":2}', '"value":{"id":1,"id":2}'),
        (b'\n{\r\n "a": "x\\ny" }\n', '"value":{   "a": "x\\ny" }'),
        (b"null", '"value":null'),
        (b"{not json", '"text":"{not json"'),
        (b"NaN", '"text":"NaN"'),
        (b"[" * 1900, '"text":"[[['),
        ("é\n\x1b[2J".encode(), '"text":"é\\n\\u001b[2J"'),
        (b"\xff\xfe", '"base64":"//4="'),
        (b"", '"bytes":0,"text":""'),
        (None, '"tombstone":true'),
    ],
)
def test_a_message_is_shown_exactly(value, told):
    """A JSON message is shown byte for byte on one line, other text as text, and the rest as Base64."""
    line = as_json(a_letter(value))
    assert told in line
    assert "\n" not in line
    assert "\r" not in line
    assert json.loads(line).keys() & {"cut"} == set()


@pytest.mark.parametrize("size", [VALUE_BYTES_MAX, VALUE_BYTES_MAX + 1])
def test_a_long_message_is_cut_unless_requested_in_full(size):
    """A long message is cut with a mark and its length; no character is divided."""
    value = b'"' + "é".encode() * ((size - 2) // 2) + b"x" * (size % 2) + b'"'
    line = json.loads(as_json(a_letter(value)))
    assert line["bytes"] == size
    if size <= VALUE_BYTES_MAX:
        assert line["value"].encode() == value[1:-1]
    else:
        assert line["cut"] is True
        assert value.decode().startswith(line["text"])
        assert len(line["text"].encode()) in (VALUE_BYTES_MAX, VALUE_BYTES_MAX - 1)
    assert json.loads(as_json(a_letter(value), whole=True))["value"].encode() == value[1:-1]


def test_a_long_message_that_is_no_text_is_cut_as_base64():
    """The beginning of a long binary message is shown as Base64."""
    line = json.loads(as_json(a_letter(b"\xff" * 5_000)))
    assert base64.b64decode(line["base64"]) == b"\xff" * VALUE_BYTES_MAX


def test_binary_keys_and_headers_are_shown():
    """Binary keys and headers are shown, and repeated names with all their values."""
    headers = [("a", b"1"), ("a", b"\xff"), ("b", None), ("dlq_reason", b"bad_header")]
    line = json.loads(as_json(read_letter(2, Record(b"\xff", b"1", headers, 0, 0))))
    assert (line["key_base64"], line["reason"]) == ("/w==", "bad_header")
    assert line["headers"] == {"a": ["1", "\\xff"], "b": None}


def test_a_row_keeps_the_terminal_as_it_is():
    """A row has no control characters, and no cell of several lines."""
    cells = as_row(a_letter(b"\x1b[2J\n" + b"x" * 10_000, b"\x07"))
    assert cells[:4] == ("2", "7", "2023-11-14 22:13:20", "?")
    assert cells[-1].startswith("?[2J?xx")
    assert cells[-1].endswith("x…")
    assert all(cell.isprintable() and len(cell) < 130 for cell in cells)


REASONS = ["undecodable", "key_mismatch", None]


@given(
    reasons=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(REASONS)), max_size=30),
    reason=st.sampled_from(["undecodable", None]),
)
def test_a_survey_goes_as_far_as_letters_move(reasons, reason):
    """Letters behind the last selected one stay, unless one before it is appended again: the order of all stays."""
    letters = [
        DeadLetter(partition, Record(b"k", b"1", None, 3 * number, 0), [], why, None, None)
        for number, (partition, why) in enumerate(reasons)
    ]
    counts = survey([(letter.partition, [letter]) for letter in letters], LetterSelection(reason))
    selected = [letter for letter in letters if reason is None or letter.reason == reason]
    assert counts.selected == len(selected)
    assert counts.waiting.total() == len(letters)
    assert counts.until.keys() == {letter.partition for letter in selected}
    passed = [letter for letter in letters if letter.record.offset < counts.until.get(letter.partition, 0)]
    assert counts.others == len(passed) - len(selected)
    for partition, until in counts.until.items():
        own = [letter for letter in letters if letter.partition == partition]
        last = max(place for place, letter in enumerate(own) if letter in selected)
        others = [letter for letter in own[:last] if letter not in selected]
        assert until == own[-1 if others else last].record.offset + 1
        assert counts.behind[partition] == (0 if others else len(own) - last - 1)


def test_a_survey_of_a_letter_whose_record_may_be_gone_goes_to_the_end():
    """A truncated letter that cannot be sent is appended again, and later ones of its key must not come before it."""
    cut = a_letter(offset=3)._replace(whole_bytes=5)
    counts = survey([(2, [cut, a_letter(offset=4)._replace(reason="other")])], LetterSelection(cut.reason))
    assert (counts.until, counts.others, counts.selected) == ({2: 5}, 1, 1)


def test_one_letter_is_chosen_by_its_place():
    """A place selects one letter; with a reason, it must match too."""
    letter = a_letter(offset=7)
    assert LetterSelection(place=(2, 7)).takes(letter)
    assert not LetterSelection(place=(2, 8)).takes(letter)
    assert not LetterSelection(place=(1, 7)).takes(letter)
    assert not LetterSelection("key_mismatch", (2, 7)).takes(letter)
