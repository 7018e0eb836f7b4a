"""Keys: the text of a SOW key, the keys of groups, and pointers to fields."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from processor.builtin.view import compiled_stages
from processor.filter import compile_filter
from processor.filter.aggregate import compile_aggregates
from processor.merge.delta import apply_delta
from processor.record import Record, Stored
from processor.subscriptions.request import subscribed_topic
from processor.values.key_text import (
    group_key,
    is_respelled,
    key_text,
    spelled_group_key,
    text_of_key,
    text_of_key_text,
)
from processor.values.pointer import child, names

NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**80), 2**80),
    st.sampled_from([2**53, 2**53 + 1, 10**15 - 1, 10**15, 10**22, 10**23, 2**64, -(10**15)]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**60), 2**60).map(float),
    st.decimals(-1000, 1000, places=3),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 0.1, 1e23, 1e-7, 1e300, 1e15, 1e16]),
    st.sampled_from([*map(Decimal, ("1.00", "1E+2", "0.10", "-0.0", "1E-7", "1E+23", "1E+2000"))]),
)  # fmt: skip
TEXTS = st.one_of(
    st.from_regex(r"[+-]?[0-9]*\.?[0-9]*([eE][+-]?[0-9]*)?", fullmatch=True).filter(bool),
    st.sampled_from(["true", "false", "True", "tru", "1 ", "٣", "1_0", '"', '"1"', "null", "nan", "inf", "-"]),
    NUMBERS.map(str),
    NUMBERS.map(key_text),
    st.text(min_size=1),
)  # fmt: skip
SCALARS = st.one_of(NUMBERS, TEXTS, st.none())
_EQUAL = compile_filter("/a = /b")


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two values are one for COUNT_DISTINCT, by the filter language: a text equals no number here."""
    if one is None or other is None:
        return one is other
    return isinstance(one, str) == isinstance(other, str) and _EQUAL.matches({"a": one, "b": other})


@given(SCALARS, SCALARS)
@example(1, True)
@example(1, 1.0)
@example(1, "1")
@example(True, "true")
@example(0.0, -0.0)
@example("", None)
@example(2**64, 18446744073709551616.0)
@example(10**23, 1e23)
@example(100, Decimal("1E+2"))
@example('"1"', "1")
def test_keys_are_equal_where_the_filter_language_says_so(one: Any, other: Any) -> None:
    """Two values have one key exactly if they are one value for the filter language."""
    if "" not in (one, other):  # An empty text is NULL before it comes to a group.
        assert (key_text(one) == key_text(other)) == are_equal(one, other)
    assert (group_key([one, "x"]) == group_key([other, "x"])) == (key_text(one) == key_text(other))


@given(st.lists(SCALARS, max_size=8))
def test_there_are_as_many_keys_as_distinct_values(values: list[Any]) -> None:
    """COUNT_DISTINCT of values is the number of their keys without the one of NULL."""
    definition = compile_aggregates({}, {"/n": "COUNT_DISTINCT(/x)"})
    group = definition.new_group()
    for place, value in enumerate(values):
        group.add(definition.contribution({"x": value}, (0, 0, place)))
    different: list[Any] = []
    for value in values:
        if value is not None and not any(are_equal(value, other) for other in different):
            different.append(value)
    row = definition.row(group) if values else {"n": 0}
    assert row == {"n": len(different)}
    assert len({key_text(value) for value in values} - {""}) == len(different)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("tea", "tea"), ("2024-02", "2024-02"), ("a,b", "a,b"), ('a"b', 'a"b'), ("ü", "ü"), ("t", "t"), ("-", "-"),
        (17, "17"), (-5, "-5"), (0, "0"), (10**30, "1" + "0" * 30), (10**500, "1" + "0" * 500),
        (1.5, "1.5"), (0.1, "0.1"), (1e-7, "1e-07"), (None, ""),
    ],
)  # fmt: skip
def test_ordinary_keys_are_the_texts_of_the_values(value: Any, key: str) -> None:
    """Texts that are no numbers, integers, fractions and NULL have the keys that they always had."""
    assert group_key([value]) == key.encode()
    assert group_key([value, value]) == json.dumps([key, key], ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("1", '"1"'), ("007", '"007"'), ("+1", '"+1"'), (".5", '".5"'), ("1e2", '"1e2"'), ("true", '"true"'),
        ("false", '"false"'),
        ('"a', '"\\"a"'), ("9" * 2000, '"' + "9" * 2000 + '"'), (True, "1"), (False, "0"), (1.0, "1"), (-0.0, "0"),
        (1e2, "100"), (Decimal("1.10"), "1.1"), (Decimal("1E+2000"), "1e+2000"), (Decimal("-2.5E-2000"), "-2.5e-2000"),
        (float("nan"), ""), (float("inf"), ""),
    ],
)  # fmt: skip
def test_other_keys_are_unmistakable(value: Any, key: str) -> None:
    """Texts that would be taken for a number are in quotation marks, and numbers have one spelling."""
    assert key_text(value) == key


@given(SCALARS)
def test_key_means_itself(value: Any) -> None:
    """A key that is asked for is the key of its record, also of several fields; and it has the text of its record."""
    key = key_text(value)
    assert spelled_group_key(key, 1) == key
    several = group_key([value, value]).decode(errors="surrogatepass")
    assert spelled_group_key(several, 2) == several
    assert key.startswith("[") or not is_respelled(key)
    if isinstance(value, str):
        assert text_of_key_text(key) == value


@pytest.mark.parametrize(
    ("spelled", "count", "key"),
    [
        ("1.0", 1, "1"), ("1e2", 1, "100"), ("-0.0", 1, "0"), ("true", 1, "1"), ("false", 1, "0"), ("007", 1, "7"),
        ('"tea"', 1, "tea"), ('"1"', 1, '"1"'), ('"1', 1, '"1'), ("1e9999999999999999999", 1, "1e9999999999999999999"),
        ('["1.0", "true"]', 2, '["1","1"]'), ('["1.0"]', 2, '["1.0"]'), ("[1.0, 2]", 2, "[1.0, 2]"),
        ("[" * 9999, 2, "[" * 9999),
    ],
)  # fmt: skip
def test_key_may_be_spelled_otherwise(spelled: str, count: int, key: str) -> None:
    """A person who asks for 1.0 or true gets the row of 1; a text that is no key stays as it is."""
    assert spelled_group_key(spelled, count) == key


@given(st.one_of(TEXTS, st.from_regex(r"[+\-.eE0-9tf]{0,6}", fullmatch=True)))
@example("true")
@example("false")
@example("1.")
@example(".")
@example("1e")
@example("1e+")
@example("+.5E-3")
def test_compiled_keys_are_the_same(text: str) -> None:
    """The compiled reading of records makes the same key of a text, or leaves the record to Python."""
    if not compiled_stages.has_compiled:
        pytest.skip("it was not compiled here")
    plain = compiled_stages.PlainRecords(
        group_name=b'"g"', names=[], states=[], partition=0, stored=Stored, kept_max=2, room_max=0
    )
    changed: dict[bytes, None] = {}
    is_plain = text.isascii() and text.isprintable() and not {'"', "\\"} & {*text}
    assert plain.add(json.dumps({"g": text}, separators=(",", ":")).encode(), changed) == bool(is_plain)
    if is_plain:
        assert plain.keys() == [*changed] == [group_key([text or None])]  # An empty text is NULL.


@pytest.mark.parametrize(
    ("pointer", "path"),
    [
        ("", ()),
        ("/", ("",)),
        ("/foo/0", ("foo", "0")),
        ("/a~1b", ("a/b",)),
        ("/m~0n", ("m~n",)),
        ("/~01", ("~1",)),
        ("/c%d", ("c%d",)),
        ("/ ", (" ",)),
        ("/a//b", ("a", "", "b")),
    ],
)
def test_a_pointer_is_read_and_written_as_in_the_rfc(pointer, path):
    """The examples of RFC 6901 are read and written."""
    assert names(pointer) == path
    built = ""
    for name in path:
        built = child(built, name)
    assert built == pointer


@pytest.mark.parametrize("pointer", ["a", "a/b", "#/a", "/~", "/a~2b", "/~~1"])
def test_an_invalid_pointer_is_refused(pointer):
    """A text that does not start with / or has escapes other than ~0 and ~1 is refused."""
    with pytest.raises(ValueError, match="is not a JSON Pointer"):
        names(pointer)


def test_applying_ignores_removed_paths_that_are_not_there():
    """Removed paths that do not exist are ignored, so a reader that missed an update can go on."""
    assert apply_delta({"a": 1, "s": "x"}, {}, ["/b", "/s/t", "/b/c"]) == {"a": 1, "s": "x"}


def test_applying_copies_the_objects_of_a_delta():
    """Applying a delta copies its objects, so a later delta does not change the one that a caller holds."""
    delta = {"a": {"b": {"c": 1}}}
    record = apply_delta(None, delta)
    apply_delta(record, {"a": {"b": {"c": 2}}})
    assert delta == {"a": {"b": {"c": 1}}}
    assert record == {"a": {"b": {"c": 2}}}


def key_of_text(text):
    """The one key that has a text: each escape stands for its byte."""
    return re.sub(rb"\\x(5c|[89a-f][0-9a-f])", lambda escape: bytes.fromhex(escape[1].decode()), text.encode())


PIECES = st.sampled_from(
    [b"\\", b"x", b"5c", b"ff", b"\\xff", b"\xff", b"\x80", b"\\x5c", b"\xc3\xa4", b"\xc3", b"F", b""]
)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(st.lists(PIECES, max_size=6).map(b"".join) | st.binary(max_size=8))
def test_a_key_follows_from_its_text(key):
    """The key follows from its text, so no two keys share one, and the text can be written as UTF-8."""
    assert key_of_text(text_of_key(key)) == key


def test_all_short_keys_have_texts_of_their_own():
    """All keys of up to six critical bytes have different texts."""
    keys = {b"".join(parts) for parts in product([b"", b"\\", b"x", b"5", b"c", b"f", b"\xff"], repeat=6)}
    assert len({text_of_key(key) for key in keys}) == len(keys)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["C:\\new\\x", "\\x41", "\\\\", "\\xFF", "ä\\"])
)
def test_a_key_of_valid_utf_8_is_its_own_text(text):
    """A key of valid UTF-8 is its own text, unless it looks like an escape of a byte beyond ASCII."""
    assert text_of_key(text.encode()) == text or re.search(r"\\x(5c|[89a-f][0-9a-f])", text)


def test_the_keys_of_messages_have_different_texts():
    """A byte that is not UTF-8 and the four characters of its escape are two keys with two texts."""
    texts = [subscribed_topic.key_text(Record(key, None, None, 0, 0)) for key in (b"\xff", b"\\xff", b"7", None)]
    assert texts == ["\\xff", "\\x5cxff", "7", ""]
