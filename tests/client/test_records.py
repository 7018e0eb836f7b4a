"""Calls for programs that want records and no messages: read, published many at a time, and as objects of a class."""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel

from processor.client import AsyncClient, Client, ClientConnection, Message, Subscription, TopicInfo, View, ViewChange
from processor.client.publish.outbox import plain_value
from processor.client.publish.publish_many import PART_MAX, ManyRecords
from processor.client.subscribe.typed_view import RecordType, TypedView
from processor.errors import PublishRejected, RecordRejected, SowstreamError, Stop
from tests.client.family import Family
from tests.client.test_publish import published


class State(StrEnum):
    """A state of an order."""

    NEW = "new"


@dataclass
class Order:
    """An order as a dataclass."""

    id: int
    qty: int
    day: date | None = None


class Model(BaseModel):
    """An order as a pydantic model."""

    id: int
    state: State = State.NEW


@pytest.mark.broker
class TestReading:
    """`records`, `record` and `topics`."""

    def test_records_are_dicts_without_marks(self, family: Family, client: Client) -> None:
        """`records` yields each matching record and no group marks; `record` is one of them, or None."""
        for number in range(5):
            family.sow(str(number), {"id": number, "qty": number})
        assert list(client.records(family.name, "/qty > 2", order_by="/qty DESC")) == [
            {"id": 4, "qty": 4},
            {"id": 3, "qty": 3},
        ]
        assert list(client.records(family.name, order_by="/id", top_n=1, select="-/,+/id")) == [{"id": 0}]
        assert client.record(family.name, 3) == {"id": 3, "qty": 3}
        assert client.record(family.name, 9) is None

    def test_records_are_objects_of_a_class(self, family: Family, client: Client) -> None:
        """With `as_` records are dataclasses or models; other fields are left out, and a misfit names key and field."""
        family.sow("1", {"id": 1, "qty": 2, "day": "2026-11-28", "more": 0})
        order = Order(1, 2, date(2026, 11, 28))
        assert list(client.records(family.name, as_=Order)) == [order]
        assert client.record(family.name, 1, as_=Order) == order
        assert client.record(family.name, 1, as_=Model) == Model(id=1)
        with client.view(family.name, as_=Order) as view:
            assert (dict(view), view[1], 1 in view, len(view)) == ({"1": order}, order, True, 1)
            family.sow("1", {"id": 1, "qty": 3}, 2)
            [change] = view.refresh(100)
            assert change.record == Order(1, 3)
            assert set(change.changed) == {"/qty"}
        family.sow("2", {"id": 2, "qty": "many"})
        with pytest.raises(SowstreamError, match=rf"record '2' of '{family.name}' is no Order: qty: Input should be"):
            client.record(family.name, 2, as_=Order)

    def test_topics_are_those_of_the_settings(self, family: Family, client: Client) -> None:
        """`topics` lists each topic with its key fields, message type and section."""
        assert client.topics() == [
            TopicInfo(family.name, ("/id",), "json", "topic"),
            TopicInfo(family.conflated, ("/id",), "json", "conflated"),
        ]

    def test_the_calls_for_event_loops(self, family: Family) -> None:
        """`AsyncClient` has the same calls, awaited, and `records` by `async for`."""
        family.sow("1", {"id": 1, "qty": 2})

        async def program() -> list[Any]:
            async with Client("desk", family.config) as client:
                view = await client.view(family.name, as_=Order)
                view.close()
                records = [record async for record in client.records(family.name)]
                sent = await client.publish_many(family.name, [{"id": 8}])
                return [records, await client.record(family.name, 1), dict(view), sent, len(await client.topics())]

        record = {"id": 1, "qty": 2}
        assert asyncio.run(program()) == [[record], record, {"1": Order(1, 2)}, 1, 2]


@pytest.mark.broker
class TestPublishing:
    """`publish_many`, and records of Python's own types."""

    def test_many_records_are_published_and_counted(self, family: Family, client: Client) -> None:
        """All records are in Kafka when the call returns; progress is the number of confirmed ones."""
        progress: list[int] = []
        records = ({"id": number} for number in range(PART_MAX + 5))
        assert client.publish_many(family.name, records, on_progress=progress.append) == PART_MAX + 5
        assert progress == [PART_MAX, PART_MAX + 5]
        assert client.publish_many(family.name, [{"n": 1}, {"n": 2}], key=lambda record: record["n"], delta=True) == 2
        keys = [record.key for records in published(family).values() for record in records]
        assert len(keys) == PART_MAX + 7
        assert sorted(keys).count(b"1") == 2

    def test_a_record_that_cannot_be_sent_is_numbered(self, family: Family, client: Client) -> None:
        """The first refused record is raised with its number; with `on_reject` each is passed on."""
        records = [{"id": 1}, {"no": 1}, {"id": 2}]
        with pytest.raises(RecordRejected, match="lacks a key field") as caught:
            client.publish_many(family.name, records)
        assert caught.value.__notes__[0].startswith("record 1 of publish_many, counted from 0; 1 of its part")
        refused: list[tuple[int, Any]] = []
        sent = client.publish_many(
            family.name, records, on_reject=lambda number, record, _: refused.append((number, record))
        )
        assert (sent, refused) == (2, [(1, {"no": 1})])
        assert sum(map(len, published(family).values())) == 4

    def test_values_of_other_types_are_replaced_by_the_hook(self, family: Family) -> None:
        """`default` replaces values that JSON does not write; without it they are refused with type and remedy."""
        day, number = datetime(2026, 11, 28, tzinfo=UTC), uuid.UUID(int=7)
        record = {"id": 1, "at": [day], "in": {"uuid": number}}
        with Client("plain", family.config) as client:
            with pytest.raises(RecordRejected, match=r"/at/0: datetime is not a.*Client\(NAME, default=str\)"):
                client.publish(family.name, record)
            with pytest.raises(RecordRejected, match="nan is not a JSON value") as caught:
                client.publish(family.name, {"id": 1, "qty": float("nan")})
            assert "default=" not in str(caught.value)
            client.publish(family.name, Order(5, 2))
            client.publish(family.name, Model(id=6))
        with Client("hook", family.config, default=str) as client:
            client.publish(family.name, record)
            client.publish(family.name, Order(8, 1, day.date()))
        values = [json.loads(record.value or b"") for records in published(family).values() for record in records]
        assert sorted(values, key=lambda value: value["id"]) == [
            {"id": 1, "at": [str(day)], "in": {"uuid": str(number)}},
            {"id": 5, "qty": 2, "day": None},
            {"id": 6, "state": "new"},
            {"id": 8, "qty": 1, "day": "2026-11-28"},
        ]


def test_a_hook_that_returns_the_same_value_is_an_error() -> None:
    """A `default` that replaces nothing is a TypeError with the type, and no endless loop."""
    with pytest.raises(TypeError, match="default= has returned the object that it was called with"):
        plain_value({"a": object()}, lambda value: value)


def test_acks_decide_which_records_were_refused() -> None:
    """A record that a worker rejects is refused with its number, though it was sent; the others count."""

    def send(record: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if record % 2:
            future.set_exception(PublishRejected("bad", "odd"))
        else:
            future.set_result(None)
        return future

    refused: list[int] = []
    many = ManyRecords(send, lambda: None, None, lambda number, _, __: refused.append(number))
    assert (many.publish(range(5)), refused) == (3, [1, 3])
    with pytest.raises(PublishRejected) as caught:
        ManyRecords(send, lambda: None, None, None).publish(range(5))
    [note] = caught.value.__notes__
    assert note.startswith("record 1 of publish_many, counted from 0; 2 of its part of 10,000 records were refused")


def test_a_record_whose_key_is_no_key_is_refused_by_itself() -> None:
    """A value that is no key of the topic refuses its own record, and the other records are read on."""
    topics = {"prices": {"key": ["/pair"]}, "explicit": {"key": "explicit"}}
    refused: list[tuple[int, str]] = []

    def refuse(number: int, _: object, error: SowstreamError) -> None:
        refused.append((number, str(error)))

    with Client("test", {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "topics": topics}) as client:
        for topic, keys in (("prices", [["a", "b"], {}]), ("explicit", [1.5])):
            rows = [{"key": key} for key in keys]
            assert client.publish_many(topic, rows, key=lambda row: row["key"], on_reject=refuse) == 0
    assert [number for number, _ in refused] == [0, 1, 0]
    assert all(text.startswith("missing_key: ") and "is no key of" in text for _, text in refused)


class Source:
    """A source of one subscription's messages and errors, one for each turn."""

    is_live, is_over, healed, unchecked = True, False, 0, 0

    def __init__(self, *turns: list[Message] | BaseException) -> None:
        self._turns = deque(turns)

    def fetch(self, _wait_s: float) -> list[Message]:
        """The next turn."""
        turn = self._turns.popleft() if self._turns else []
        if isinstance(turn, BaseException):
            raise turn
        return turn

    def close(self, *, delivered: bool) -> None:
        """Nothing is kept."""


def subscription(*turns: list[Message] | BaseException) -> Subscription:
    """A subscription with these messages and errors."""
    source: Any = Source(*turns)
    return Subscription(source, pytest.fail, timeout_s=0, on_message=None, on_close=lambda _: None)


def sow(key: str, command: Any = "sow", **data: object) -> Message:
    """A message with a full record."""
    return Message(command, "orders", sow_key=key, data={"id": key, **data})


BEGIN, END = Message("group_begin", "orders"), Message("group_end", "orders")


def test_records_come_once_though_a_snapshot_begins_again() -> None:
    """Records that came before a gateway was lost do not come again, in an event loop neither."""
    again = [BEGIN, sow("1"), BEGIN, sow("1"), sow("2"), END]

    class OneSnapshot(Client):
        def sow(self, *_: object, **__: object) -> Subscription:
            return subscription(again)

    client = OneSnapshot("test", {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "topics": {"orders": {}}})

    async def records() -> list[Any]:
        return [record async for record in AsyncClient(client).records("orders")]

    assert list(client.records("orders")) == asyncio.run(records()) == [{"id": "1"}, {"id": "2"}]


@pytest.mark.parametrize("error", [Stop("the topic has moved"), SystemExit()], ids=repr)
def test_an_error_waits_for_the_changes_before_it(error: BaseException) -> None:
    """`refresh` returns the changes that it has read, and the next call raises the error behind them, once."""
    view = View(subscription([BEGIN, END], [sow("1", "publish")], error))
    assert view.refresh() == [ViewChange("1", {"id": "1"}, ("/id",))]
    with pytest.raises(type(error)):
        view.refresh()
    assert view.refresh() == []


def test_a_record_that_does_not_fit_costs_no_other_change() -> None:
    """The changes before it come first, then its error, then those behind it."""
    messages = [sow("1", "publish", qty=1), sow("2", "publish"), sow("3", "publish", qty=3)]
    view = TypedView(View(subscription([BEGIN, END], messages)), RecordType("orders", Order))
    assert [change.record for change in view.refresh()] == [Order(1, 1)]
    with pytest.raises(SowstreamError, match="record '2' of 'orders' is no Order"):
        view.refresh()
    assert [change.record for change in view.refresh()] == [Order(3, 3)]
    assert view.refresh() == []


def test_changes_begin_with_those_that_a_refresh_keeps() -> None:
    """A change never comes behind a newer one, though an error stands before it in `changes`, too."""
    messages = [sow("1", "publish", qty=1), sow("2", "publish"), sow("3", "publish", qty=3)]
    later = [sow("3", "publish", qty=4)]
    view = TypedView(View(subscription([BEGIN, END], messages, [], later)), RecordType("orders", Order))
    assert [change.record for change in view.refresh()] == [Order(1, 1)]
    changes = view.changes(0.0)
    with pytest.raises(SowstreamError, match="record '2' of 'orders' is no Order"):
        next(changes)
    assert [change.record for change in changes] == [Order(3, 3), Order(3, 4)]


def test_help_shows_each_argument_by_name() -> None:
    """The signatures of subscribing calls have each option by name, and no `**arguments`."""
    for owner in (Client, AsyncClient):
        signature = inspect.signature(owner.sow_and_subscribe)
        assert {"select", "conflation", "top_n", "timeout_s", "on_message"} <= signature.parameters.keys()
        assert "arguments" not in signature.parameters


@pytest.mark.parametrize("owner", [Client, AsyncClient, ClientConnection])
def test_only_topic_filter_and_options_have_places(owner: type) -> None:
    """Each call that reads takes topic, filter and AMPS' options by place, in this order, and all else by name."""
    calls = {"sow", "records", "view", "subscribe", "sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"}
    for call in calls & set(dir(owner)):
        parameters = inspect.signature(getattr(owner, call)).parameters.values()
        places = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        assert places == ["self", "topic", "filter", "options"][: 3 if call == "records" else 4], call
