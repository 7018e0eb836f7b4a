"""Tests that `delta_subscribe` and `sow_and_delta_subscribe` deliver the same deltas of a conflated topic."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from tests.endtoend.copies import Copies
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.client import Message, Subscription

pytestmark = pytest.mark.broker

PUBLISH = {"command": "publish"}
FORMS = ("delta_subscribe", "sow_and_delta_subscribe")
VARIANTS: dict[str, tuple[str | None, str]] = {
    "plain": (None, ""),
    "filter": ("/ref > 0", ""),
    "select": (None, "select=[-/,+/state,+/ref]"),
    "oof": (None, "oof"),
    "no_empties": (None, "no_empties"),
    "everything": ("/ref > 0", "oof,no_empties,select=[-/,+/state,+/ref]"),
}


def received(subscription: Subscription, key: str) -> list[Message]:
    """Return the updates of one key up to the record that is marked as the last."""
    messages: list[Message] = []
    for message in subscription:
        if message.sow_key != key:
            continue
        messages.append(message)
        if message.data.get("ref") == 99:
            break
    return messages


def test_every_call_delivers_the_deltas_of_the_delta_topic(copies: Copies, unique: str) -> None:
    """Both calls deliver the selected part of each written delta in order, with six sets of options."""
    record = {"id": unique, "state": "open", "note": "-", "ref": 1}
    held = record | {"state": "held", "note": "x"}
    intervals: list[list[dict[str, Any] | None]] = [
        [record],
        [held, record],  # The example of conflation.md.
        [record | {"ref": 2}],
        [held | {"ref": 2}, record | {"ref": 3}],
        [None, record | {"ref": 3}],  # Deleted and published again: everything was touched.
        [record | {"ref": 99, "note": "end"}],
    ]
    with Client("calls", copies.config) as client:
        opened = {
            (form, name): getattr(client, form)(copies.conflated, filter_text, options, timeout_s=PATIENCE_S)
            for form in FORMS
            for name, (filter_text, options) in VARIANTS.items()
        }
        for count, updates in enumerate(intervals, 1):
            copies.at_once(*((unique, body, PUBLISH) for body in updates))
            _, delta = copies.deliveries(unique, count)
        messages = {call: received(subscription, unique) for call, subscription in opened.items()}

    written = [json.loads(each.value or b"{}") for each in delta]
    assert written[1] == {"id": unique, "state": "open", "note": "-"}
    assert written[4] == record | {"ref": 3}
    selected = [{name: body[name] for name in ("id", "state", "ref") if name in body} for body in written]
    for (form, name), told in messages.items():
        expected = selected if name in ("select", "everything") else written
        assert [message.data for message in told] == expected, (form, name)
        assert [message.delta for message in told] == [False, True, True, True, True, True], (form, name)
        assert [message.version for message in told] == [int(each.headers["version"]) for each in delta], (form, name)
