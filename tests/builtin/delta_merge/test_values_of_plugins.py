"""Values made by plug-ins: one that a message type cannot write rejects the record, and never becomes a null."""

import datetime as dt
import math
from decimal import Decimal

import msgpack
import pytest

from tests.builtin.merging import bodies, merging, rejected

VALUES = {
    "nan": math.nan,
    "infinity": {"deep": [1, -math.inf]},
    "decimal_nan": Decimal("NaN"),
    "datetime": dt.datetime(2024, 2, 29, tzinfo=dt.UTC),
    "long": 2**64,
    "tuple": (1, None),
}
"""The values that the plug-ins below put into a message, by the setting `kind`."""


def put(*, kind):
    """A preprocessor and enricher that adds a value to every message, at /a/px."""
    return lambda message, previous=None: message | {"a": {"px": VALUES[kind]}}


def to_nan(one, other):
    """A merge rule without a result."""
    return math.nan


@pytest.fixture(autouse=True)
def plugins(tmp_path, monkeypatch):
    """The functions of this file are installed as plug-ins."""
    info = tmp_path / "values-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: values\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[sowstream.preprocessors]\nput = {__name__}:put\n[sowstream.enrichers]\nput = {__name__}:put\n"
        f"[sowstream.merge_rules]\nto_nan = {__name__}:to_nan\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("stage", ["preprocess", "enrich"])
@pytest.mark.parametrize("command", ["publish", "delta_publish"])
@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("nan", "/a/px: nan is not a JSON value; leave it out, or publish null"),
        ("infinity", "/a/px/deep/1: -inf is not a JSON value; leave it out, or publish null"),
        ("decimal_nan", "/a/px: NaN is not a JSON value; leave it out, or publish null"),
        ("datetime", "/a/px: datetime is not a JSON value: "),
    ],
)
def test_a_value_that_json_lacks_rejects_the_record_with_its_place(stage, command, kind, detail):
    """The record stays as it was, and the dead letter has the place of the plug-in's value."""
    driver = merging(**{stage: [{"use": "put", "settings": {"kind": kind}}]})
    driver.pipe_input("7", {"id": 7, "px": 5}, {"command": command})
    [(reason, said)] = rejected(driver)
    assert (reason, said[: len(detail)]) == ("schema_mismatch", detail)
    assert not driver.pending_output("sow")
    assert not driver.pending_output("delta")


def test_a_merge_rule_that_makes_no_number_rejects_the_delta():
    """The first value of a field meets no rule; the second makes NaN, which JSON lacks, and the first stays."""
    driver = merging(merge_rules={"/px": "to_nan"})
    driver.pipe_batch([("7", {"id": 7, "px": 1}, None), ("7", {"px": 2}, None), ("7", {"n": 1}, None)])
    assert rejected(driver) == [("schema_mismatch", "/px: nan is not a JSON value; leave it out, or publish null")]
    assert bodies(driver.pending_output("sow")) == [{"id": 7, "px": 1}, {"id": 7, "px": 1, "n": 1}]


@pytest.mark.parametrize(("kind", "text"), [("long", b"18446744073709551616"), ("tuple", b"[1,null]")])
def test_a_value_that_json_has_in_another_form_is_written(kind, text):
    """An int of any length is written with every digit, and a tuple as an array."""
    driver = merging(enrich=[{"use": "put", "settings": {"kind": kind}}])
    driver.pipe_batch([("7", {"id": 7}, None), ("7", {"n": 1}, None)])
    assert rejected(driver) == []
    [*_, record] = driver.pending_output("sow")
    assert record.value.rstrip() == b'{"id":7,"a":{"px":' + text + b'},"n":1}'


def test_values_of_a_message_type_are_written_by_it():
    """MessagePack has NaN: a plug-in's is kept, in the record and in the delta."""
    driver = merging(enrich=[{"use": "put", "settings": {"kind": "nan"}}], message_type="msgpack")
    driver.pipe_input("7", {"id": 7})
    [record] = driver.pending_output("sow")
    [delta] = driver.pending_output("delta")
    assert rejected(driver) == []
    assert record.value == delta.value == msgpack.packb({"id": 7, "a": {"px": math.nan}})
