"""The contract that every message type keeps, and the table of it in the page."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processor.codec.contract import GROUP
from processor.entry_points import installed_names
from processor.errors import RecordRejected
from tests.codec.specimens import SPECIMENS, codec_of, strict

QUICK = settings(max_examples=100, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
ALL = pytest.mark.parametrize("name", sorted(SPECIMENS))
NESTING = {
    "json": (lambda inner: {"a": inner}, 1, 0),
    "json-schema": (lambda inner: {"a": inner}, 1, 0),
    "msgpack": (lambda inner: {"a": [inner]}, 2, 0),
    "bson": (lambda inner: {"a": inner}, 1, 0),
    "xml": (lambda inner: {"a": inner}, "", 0),
    "composite-local": (lambda inner: {"a": inner}, 1, 1),
    "composite-global": (lambda inner: {"a": inner}, 1, 1),
    "protobuf": (lambda inner: {"parent": inner}, {}, 2),
    "protobuf-presence": (lambda inner: {"a": inner}, {}, 1),
}
"""For each type: a function that nests a value, the innermost value, and the number of levels above it."""

ELSEWHERE = {"avro"}
"""Types that need a schema or a registry, and have tests of their own."""

VARIANTS = {"protobuf-presence"}
"""Second specimens of a type whose schema decides whether it can do deltas."""


def test_every_installed_type_is_tried():
    """Every installed message type has a specimen; a new type needs one."""
    assert set(installed_names(GROUP)) - ELSEWHERE == set(SPECIMENS) - VARIANTS


@ALL
def test_each_type_declares_whether_it_can_do_deltas(name):
    """`can_delta` is false for exactly the types of full messages in the specification."""
    assert codec_of(name).can_delta is (name not in {"composite-global", "protobuf", "binary"})
    assert codec_of(name).can_delta is (SPECIMENS[name].bodies is not None)


@pytest.mark.random
@ALL
def test_written_values_are_read_back(name):
    """Every value is read back with its types, as a publisher's message, and as a stored one alone and among others."""
    codec = codec_of(name)

    @QUICK
    @given(st.lists(SPECIMENS[name].values, min_size=1, max_size=4))
    def prove(values):
        messages = [codec.encode(value) for value in values]
        expected = [strict(value) for value in values]
        assert [strict(value) for value in codec.decode_own_many(messages)] == expected
        for data, value in zip(messages, expected, strict=True):
            assert strict(codec.decode_own(data)) == value
            if data:
                assert strict(codec.decode(data)) == value

    prove()


@pytest.mark.random
@ALL
def test_random_bytes_are_rejected_or_read(name):
    """Random and damaged bytes are rejected with a reason, or decoded to a value that can be written again."""
    codec = codec_of(name)
    messages = SPECIMENS[name].values.map(codec.encode)

    @QUICK
    @given(st.binary(max_size=40) | st.tuples(messages, st.data()).map(_damaged))
    def prove(data):
        try:
            value = codec.decode(data)
        except RecordRejected as refused:
            rejection = refused
        else:
            again = codec.decode_own(codec.encode(value))
            assert strict(again) == strict(value)
            return
        assert rejection.reason in {"undecodable", "too_deep"}
        assert rejection.detail
        assert "\n" not in rejection.detail

    prove()


def _damaged(parts):
    """A message with a few bytes changed, removed or inserted."""
    message, data = parts
    damaged = bytearray(message)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged)))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    return bytes(damaged)


@pytest.mark.parametrize("name", sorted(NESTING))
def test_nesting_is_refused_beyond_max_depth_and_not_before(name):
    """A message with `max_depth` levels is read; one level more is `too_deep`."""
    deeper, bottom, own_levels = NESTING[name]
    limit = 20
    roomy, codec = codec_of(name, max_depth=250), codec_of(name, max_depth=limit)

    def message(levels):
        value = bottom
        depth = own_levels
        while depth < levels:
            value = deeper(value)
            depth += 2 if name == "msgpack" else 1
        return roomy.encode({"0": value} if name.startswith("composite") else value)

    assert codec.decode(message(limit)) == roomy.decode(message(limit))
    for levels in (limit + 1, limit + 2, 90):
        with pytest.raises(RecordRejected, match="too_deep"):
            codec.decode(message(levels))


ABYSS = {
    "json": b"[" * 100_000,
    "json-schema": b"[" * 100_000,
    "msgpack": b"\x91" * 100_000,
    "bson": b"\x10\x00\x00\x00" + b"\x03a\x00\xf0\x00\x00\x00" * 50_000,
    "xml": b"<a>" * 100_000,
    "composite-local": (100_000).to_bytes(4, "big") + b"[" * 100_000,
    "protobuf": b"\x42\xff\x7f" * 50_000,
    "protobuf-presence": b"\x12\xff\x7f" * 50_000,
}


@pytest.mark.parametrize("name", sorted(ABYSS))
def test_hostile_depth_costs_a_rejection(name):
    """A hundred thousand levels are rejected and exhaust neither the stack nor the memory."""
    with pytest.raises(RecordRejected):
        codec_of(name).decode(ABYSS[name])


@ALL
def test_a_value_of_no_message_type_is_a_type_error(name):
    """A value that no message type can hold is a TypeError with a message, for the plug-in that created it."""
    codec = codec_of(name)
    for value in (object(), {"id": object()}, {"0": object()}, {7: "x"}, {"a": {1, 2}}, {"a": {7: "x"}}):
        with pytest.raises(TypeError, match=r"\w"):
            codec.encode(value)


TEXT = (Path(__file__).parents[2] / "processor" / "codec" / "README.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w-]+)` \| (yes|no) \|", TEXT, re.MULTILINE))

[PRESENCE] = re.findall(r"^\| `protobuf` with field presence \| (yes|no) \|", TEXT, re.MULTILINE)


def test_the_table_has_the_installed_types_and_no_others():
    """The table lists exactly the installed types, under their names in the settings."""
    assert GROUP in TEXT
    assert sorted(ROWS) == installed_names(GROUP)


def test_the_table_marks_the_types_with_deltas():
    """The table's column on deltas agrees with the codecs."""
    documented = {**{name: row == "yes" for name, row in ROWS.items()}, "protobuf-presence": PRESENCE == "yes"}
    assert {name: documented[name] for name in SPECIMENS} == {name: codec_of(name).can_delta for name in SPECIMENS}


def test_every_file_in_the_readme_exists():
    """Every file that the README names exists in its folder."""
    folder = Path(__file__).parents[2] / "processor" / "codec"
    assert [name for name in re.findall(r"`(\w+\.py)`", TEXT) if not (folder / name).exists()] == []
