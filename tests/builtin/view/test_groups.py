"""The groups of a view: their keys, rows without records, and values that count as equal."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from processor.builtin.view import compiled_stages, start_pass
from processor.builtin.view import kept_groups as groups_module
from processor.builtin.view.start_pass import StartPass, forget_process
from processor.codec import load_codec
from processor.config import ViewConfig
from processor.errors import ConfigurationError
from processor.filter.aggregate import compile_aggregates, extremes
from processor.merge import KeyFields
from processor.record import Record
from processor.runtime.loop.state_access import start_writing
from processor.store.contract import stale_reason
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, Topic
from processor.subscriptions.request.subscribe_options import parse_options
from processor.topics.family import DAY_MS
from processor.wire.view_parts import fingerprint
from tests.builtin.view.chain import AggregateChain
from tests.builtin.view.equal_values import GROUPS, as_written, expected_rows, records
from tests.builtin.view.histories import History
from tests.builtin.view.join_chain import BROADCAST_VIEW, VIEW, JoinChain

if TYPE_CHECKING:
    from collections.abc import Mapping


GROUPED = {"group_by": ["/customer"], "fields": {"/n": "COUNT(*)", "/low": "MIN(/n)"}}


def large(members: int) -> AggregateChain:
    """A chain with a group of so many members and a small one, whose aggregate has just been started."""
    chain = AggregateChain(GROUPED, inputs=1, partitions=1)
    for number in range(members):
        chain.put(0, f"k{number}", {"customer": "big", "n": number})
    chain.put(0, "x", {"customer": "small", "n": 1})
    chain.run()
    chain.run()
    forget_process()
    (aggregate,) = chain.aggregates
    aggregate.crash()
    return chain


def rows(chain: AggregateChain) -> dict[str, int]:
    """The number of members of each group."""
    return {key: row["n"] for key, row in chain.rows().items()}


def test_large_group_is_built_in_pieces_while_rows_of_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of a group that is being built waits; changes of its members on either side of the place count."""
    monkeypatch.setattr(groups_module, "BUILT_MAX", 100)
    monkeypatch.setattr(groups_module, "SHARE_MAX", 50)
    monkeypatch.setattr(StartPass, "has_more", False)  # Groups are built because they change, and for no other reason.
    chain = large(1_000)
    (aggregate,) = chain.aggregates
    for key in ("k0", "k999", "new"):
        chain.put(0, key, None if key == "k0" else {"customer": "big", "n": -5})
    chain.put(0, "y", {"customer": "small", "n": 2})
    chain.run_splits()
    aggregate.feed()
    aggregate.commit()
    assert rows(chain) == {"big": 1_000, "small": 2}
    aggregate.advance_time(1, punctuations_max=3)
    for key in ("k1", "k10", "k998"):  # Of these some have been read, and some have not.
        chain.put(0, key, None)
    chain.run_splits()
    aggregate.feed()
    aggregate.commit()
    assert rows(chain)["big"] == 1_000, "it is still being built"
    aggregate.advance_time(1)
    aggregate.commit()
    assert rows(chain) == {"big": 997, "small": 2}
    assert chain.rows()["big"]["low"] == -5


def test_pass_goes_on_where_it_was_after_a_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback does not begin the pass over all groups again; another process does."""
    named: list[int] = []
    real = StartPass.next_groups

    def next_groups(self: StartPass, *arguments: object) -> list[bytes]:
        found = real(self, *arguments)  # type: ignore[arg-type]
        named.append(len(found))
        return found

    monkeypatch.setattr(StartPass, "next_groups", next_groups)
    chain = AggregateChain(GROUPED, inputs=1, partitions=1)
    monkeypatch.setattr(start_pass, "_PIECE", 100)
    count = 150
    for number in range(count):
        chain.put(0, f"k{number}", {"customer": f"c{number}", "n": number})
    chain.run()
    (aggregate,) = chain.aggregates
    forget_process()
    aggregate.crash()
    named.clear()
    aggregate.advance_time(1, punctuations_max=1)
    aggregate.commit()
    assert sum(named) == 100
    aggregate.abort()
    aggregate.advance_time(1)
    aggregate.commit()
    assert sum(named) == count + count, "the other groups of the table, and those of the rows"
    named.clear()
    aggregate.abort()
    aggregate.advance_time(1)
    assert sum(named) == 0
    forget_process()
    aggregate.crash()
    aggregate.advance_time(1)
    assert sum(named) == count + count


def test_a_group_whose_row_was_refused_before_a_rollback_keeps_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group without a row, as that was too large, is not begun as empty by an instance that has not compared it."""
    monkeypatch.setattr(start_pass, "_PIECE", 3)
    fields = {"/n": "COUNT(*)", "/last": "LAST(/text)"}
    view = {"group_by": ["/g"], "fields": fields, "max_record_bytes": 100, "partial_aggregation": False}
    chain = AggregateChain(view, inputs=1, partitions=1)
    for number in range(9):
        group, length = ("a", 200) if number < 3 else (f"b{number}", 1)
        chain.put(0, f"k{number}", {"g": group, "text": "x" * length})
    chain.run()
    (aggregate,) = chain.aggregates
    forget_process()
    aggregate.crash()
    aggregate.advance_time(1, punctuations_max=1)
    aggregate.commit()
    aggregate.abort()
    aggregate.advance_time(1)
    aggregate.commit()
    assert "a" not in chain.rows()
    chain.put(0, "k9", {"g": "a", "text": "y"})
    chain.run()
    assert chain.rows()["a"] == {"g": "a", "n": 4, "last": "y"}


def test_rows_of_a_commit_are_written_once_each() -> None:
    """Several changes of a group between two commits are one update, and a row that did not change is none."""
    chain = AggregateChain({"group_by": ["/customer"], "fields": {"/n": "COUNT(*)"}}, inputs=1, partitions=1)
    for number in range(50):
        chain.put(0, f"k{number % 10}", {"customer": "a"})
    chain.run()
    chain.put(0, "k1", {"customer": "a", "other": 1})
    chain.run()
    (aggregate,) = chain.aggregates
    assert [json.loads(record.value or b"")["n"] for record in aggregate.read_output("delta")] == [10]


@pytest.mark.parametrize("limit", ["GROUPS_MAX", "VALUES_MAX"])
def test_groups_that_do_not_fit_in_memory_are_built_again(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are the same where one group stays in memory, as others would be too many or would keep too many values."""
    monkeypatch.setattr(groups_module, limit, 1)
    for seed in range(3):
        history = History(seed)
        for step in range(6):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"
            for aggregate in history.chain.aggregates:
                assert aggregate.gauges["groups_in_memory"] <= 1


def test_a_small_group_whose_extreme_is_gone_has_its_row_with_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is built again at once, and its row waits for no further input."""
    monkeypatch.setattr(extremes, "KEPT_MAX", 2)
    view = {"group_by": ["/g"], "fields": {"/high": "MAX(/n)"}, "partial_aggregation": False}
    chain = AggregateChain(view, inputs=1, partitions=1)
    for number in range(5):
        chain.put(0, f"k{number}", {"g": "a", "n": number})
    chain.run()
    assert chain.rows()["a"]["high"] == 4
    for number in (0, 4, 3):
        chain.put(0, f"k{number}", None)
    chain.run_splits()
    (aggregate,) = chain.aggregates
    aggregate.feed()
    aggregate.commit()
    assert chain.rows()["a"]["high"] == 2


def test_a_table_on_disk_is_as_old_as_the_input_that_was_processed() -> None:
    """A pipeline that lags may lack deletes that its input does not have any more, so its table is wiped."""
    chain = AggregateChain(GROUPED, inputs=1, partitions=1)
    (aggregate,) = chain.aggregates
    now_ms = int(time.time() * 1000)
    for aggregate.now_ms in (now_ms - 3 * DAY_MS, now_ms):
        chain.put(0, f"k{aggregate.now_ms}", {"customer": "a", "n": 1})
        chain.run_splits()
    table = aggregate._task.table
    assert table is not None
    stale = []
    for _ in range(2):
        aggregate.feed(1)
        aggregate.commit()
        start_writing([aggregate._task], now_ms)
        table.write_some(1_000)
        stale.append(stale_reason(table.store.progress(), 2, DAY_MS))
    assert stale[0] is not None
    assert stale[0][0] == "too_old"
    assert stale[1] is None
    chain.put(0, "late", {"customer": "a", "n": 2})
    chain.run_splits()
    aggregate.now_ms += DAY_MS
    aggregate.feed()
    aggregate.close()
    assert stale_reason(table.store.progress(), 3, DAY_MS / 2) is None
    assert table.store.progress().applied_at_ms < aggregate.now_ms, "what was not committed is not in it"


COUNTS = {"group_by": ["/g"], "fields": {"/n": "COUNT(*)"}}


def rows_of_view(seed: int, **settings: Any) -> dict[str, str]:
    """The rows of a view over the records, by key, as the bytes of its SOW topic."""
    chain = AggregateChain({**COUNTS, **settings}, inputs=2, partitions=3)
    for number, (key, value) in enumerate(records(seed)):
        split = chain.splits[int(key[1:]) % 2]
        split.input.append(Record(key.encode(), value, [("version", b"1")], len(split.input), chain.now_ms))
        if number % 40 == 0:
            chain.run()
    chain.run()
    last = {record.key: record.value for each in chain.aggregates for record in each.read_output("sow")}
    # A space at the end marks numbers of many digits.
    return {(key or b"").decode(): value.decode().rstrip(" ") for key, value in last.items() if value is not None}


@pytest.mark.parametrize("seed", range(3))
def test_equal_values_are_one_group_of_a_view(seed: int) -> None:
    """A view has one row for values that are equal, in any order of arrival, with the simplest of them."""
    assert rows_of_view(seed) == expected_rows()


@pytest.mark.parametrize("is_compiled", [True, False])
def test_equal_values_are_one_group_of_partial_aggregates(
    *, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With partial aggregation, compiled or not, a view has the same rows."""
    if is_compiled and not compiled_stages.has_compiled:
        pytest.skip("it was not compiled here")
    monkeypatch.setattr(compiled_stages, "has_compiled", is_compiled)
    assert rows_of_view(1, partial_aggregation=True) == expected_rows()


@pytest.mark.parametrize("seed", range(3))
def test_equal_values_are_one_group_of_a_subscriber(seed: int) -> None:
    """An aggregated subscription, of which the snapshot comes half-way, has the same rows under the same keys."""
    topic = Topic("orders", load_codec("json"), KeyFields(("/id",)))
    engine, all_records = Engine(topic, MemoryRecords()), records(seed)
    parsed = parse_options("projection=[COUNT(*) AS /n],grouping=[/g],oof", snapshot=True, live=True, delta=False)
    asked = SubscriptionSpec(topic, None, parsed, snapshot=True, live=True, delta=False)
    desk = engine.connect()
    held: dict[str, Any] = {}
    for offset, (key, value) in enumerate(all_records):
        if offset == len(all_records) // 2:
            desk.subscribe(asked)
        engine.take(0, [Record(key.encode(), value, [("version", b"1")], offset, 1_700_000_000_000)], offset)
        for message in desk.take(1000):
            if message.command == "oof":
                del held[message.sow_key or ""]
            elif message.command in {"sow", "publish"}:
                held[message.sow_key or ""] = load_codec("json").encode(message.data).decode().rstrip(" ")
    assert held == expected_rows()


def test_there_are_as_many_groups_as_distinct_values() -> None:
    """COUNT_DISTINCT counts as many values as a view has groups without the one of NULL."""
    definition = compile_aggregates({}, {"/n": "COUNT_DISTINCT(/g)"})
    group = definition.new_group()
    for number, (_, value) in enumerate(records(0)[-2 * sum(len(members) for _, members in GROUPS.values()) :]):
        group.add(definition.contribution(load_codec("json").decode_own(value), (0, 0, number)))
    assert definition.row(group) == {"n": len(GROUPS) - 1}


def test_row_has_the_simplest_of_the_values_that_its_members_have() -> None:
    """The grouping value of a row changes with its members, and does not depend on which of them came first."""
    chain = AggregateChain(COUNTS, inputs=1, partitions=1)
    seen = []
    for key, value in (("a", True), ("b", 1.0), ("c", 1), ("c", None), ("a", None), ("b", 1), ("b", True), ("b", 1.0)):
        chain.put(0, key, None if value is None else {"g": value})
        chain.run()
        seen.append(json.dumps(chain.rows()["1"]["g"]))
    assert seen == ["true", "true", "1", "true", "1.0", "1", "true", "1.0"]


def test_groups_of_several_fields() -> None:
    """The key of several fields is the JSON array of their texts, and equal fields make one group."""
    chain = AggregateChain({**COUNTS, "group_by": ["/g", "/h"]}, inputs=1, partitions=2)
    for number, (one, other) in enumerate(((1, "a"), (1.0, "a"), ("1", "a"), (None, True), ("", 1), ("true", "x"))):
        chain.put(0, f"k{number}", {"g": one, "h": other})
    chain.run()
    counts = {key: row["n"] for key, row in chain.rows().items()}
    assert counts == {'["1","a"]': 2, '["\\"1\\"","a"]': 1, '["","1"]': 2, '["\\"true\\"","x"]': 1}


@pytest.mark.parametrize(
    "view", [VIEW, BROADCAST_VIEW, VIEW | {"filter": None}], ids=["repartition", "broadcast", "plain"]
)
def test_join_keys_are_equal_as_groups_are(view: Mapping[str, Any]) -> None:
    """A record meets the partners whose value is equal: 1 meets 1.0 and not "1", and NULL meets nothing."""
    chain = JoinChain(view)
    for number, (key, (_, members)) in enumerate(GROUPS.items()):
        # The SOW key is the partner's own; its field is written in the last way of the group's.
        value = f'{{"id":{members[-1]},"name":"{number}","bonus":0}}'
        chain.right[number % 2].append_input(f"p{number}".encode(), as_written(value), [("version", b"1")])
        for place, member in enumerate(members):
            order = f'{{"id":"o{number}.{place}","customer":{member},"qty":1,"state":"new"}}'
            chain.left[place % 2].append_input(f"o{number}.{place}".encode(), as_written(order), [("version", b"1")])
        assert key or members[0] == "null"
    chain.run()
    chain.run()
    names = {key: row.get("name") for key, row in chain.rows().items()}
    assert names == {
        f"o{number}.{place}": None if key == "" else str(number)
        for number, (key, (_, members)) in enumerate(GROUPS.items())
        for place in range(len(members))
    }


def test_groups_of_an_older_version_are_refused_with_the_command_that_builds_them_again() -> None:
    """Only views with keys of values have another fingerprint than before, and the refusal names the rebuild."""
    join = {"join": [{"topic": "people", "on": {"/a": "/b"}}], "fields": {"/id": "/id"}}
    views: dict[str, Mapping[str, Any]] = {
        "groups": COUNTS,
        "partial": COUNTS | {"partial_aggregation": True},
        "repartition": join | {"join_method": "repartition"},
        "broadcast": join | {"join_method": "broadcast"},
        "same_key": join | {"join_method": "same_key"},
        "one group": COUNTS | {"group_by": []},
        "projection": {"fields": {"/id": "/id"}},
    }
    settings = {name: ViewConfig.model_validate({"underlying": "orders", **view}) for name, view in views.items()}
    changed = {name for name, each in settings.items() if fingerprint(each) != fingerprint(each, keys_version=1)}
    assert changed == {"groups", "partial", "repartition", "broadcast"}


def test_rows_of_an_older_version_stop_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that begins with keys of the former law says what to do, and that of the same law begins."""
    chain = AggregateChain(COUNTS, inputs=1, partitions=1)
    former = fingerprint(chain.settings, keys_version=1)
    (aggregate,) = chain.aggregates
    with monkeypatch.context() as patched:
        patched.setattr("processor.builtin.view.definitions.fingerprint", lambda *_args, **_more: former)
        chain = AggregateChain(COUNTS, inputs=1, partitions=1)
        chain.put(0, "1", {"g": "a"})
        chain.run()
        (aggregate,) = chain.aggregates
        aggregate.crash()
    with pytest.raises(ConfigurationError, match=r"older version .* `sowstream view rebuild v`"):
        aggregate.crash()
