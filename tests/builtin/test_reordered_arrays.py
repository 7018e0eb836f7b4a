"""The law of delta replay where only the order of members inside an array changes, in both ways of merging JSON."""

import importlib.util
import json

import pytest

from processor.builtin.delta_merge import fast_path
from tests.builtin.merging import merging
from tests.builtin.reading import told

FIRST = b'{"id":7,"n":1,"legs":[[{"x":1,"y":{"p":1,"q":2}}]]}'
SECOND = b'{"id":7,"n":1,"legs":[[{"y":{"q":2,"p":1},"x":1}]]}'


@pytest.mark.parametrize("way", ["compiled", "pure"])
@pytest.mark.parametrize("settings", [{}, {"null_policy": "set"}, {"merge_depth": 1}, {"source_header": True}], ids=str)
@pytest.mark.parametrize("command", [None, "publish"])
def test_the_delta_carries_an_array_whose_bytes_differ(way, settings, command, monkeypatch):
    """An array is one value: record and delta have the bytes of the last update, so replay has those of the record."""
    if way == "compiled" and importlib.util.find_spec("processor.builtin.delta_merge.fast_path_json") is None:
        pytest.skip("compiled_deltas was not compiled")
    monkeypatch.setattr(fast_path, "has_compiled", way == "compiled")
    driver = merging(**settings)
    for message in (FIRST, SECOND, SECOND):
        driver.pipe_input("7", message, {"command": command} if command else None)
    sow, deltas = driver.pending_output("sow"), driver.pending_output("delta")
    assert [record.value for record in sow] == [FIRST, SECOND, SECOND]
    assert json.loads(deltas[1].value).keys() == {"id", "legs"}
    assert deltas[1].value.endswith(SECOND[SECOND.index(b'"legs"') :])
    assert [told(delta).get("empty") for delta in deltas] == [None, None, "true"]


@pytest.mark.parametrize("command", [None, "publish"])
def test_members_in_another_order_outside_of_arrays_are_no_change(command):
    """A delta names members one by one, so the order of members of an object is not part of its value."""
    driver = merging()
    for message in (b'{"id":7,"o":{"x":1,"y":2},"n":1}', b'{"id":7,"n":1,"o":{"y":2,"x":1}}'):
        driver.pipe_input("7", message, {"command": command} if command else None)
    assert [told(delta).get("empty") for delta in driver.pending_output("delta")] == [None, "true"]
