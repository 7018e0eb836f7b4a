"""The stages of a view, one by one, and together under random histories with injected faults."""

from __future__ import annotations

import pytest

from processor.builtin.view import compiled_stages
from processor.builtin.view.aggregate import ViewAggregate
from processor.builtin.view.start_pass import forget_process
from processor.codec import load_codec
from processor.errors import ConfigurationError, RecordRejected
from processor.filter.functions import BUILT_IN, Function
from processor.hosting import record_writer
from processor.kafka.partitioner import partition_for
from processor.runtime.recovery.log_replay import PresentKeys
from processor.testing import ProcessorTestDriver
from processor.wire.view_parts import DEFINITION_MARK
from tests.builtin.view.bugs import OF_EXTREMES, OF_GROUPS, OF_JOINS
from tests.builtin.view.chain import AggregateChain, projection
from tests.builtin.view.histories import ExtremesHistory, History, MergedHistory, PlainHistory
from tests.builtin.view.join_chain import (
    VIEW,
    BroadcastHistory,
    JoinChain,
    JoinHistory,
    PlainBroadcastHistory,
    PlainJoinHistory,
    SameKeyHistory,
)
from tests.builtin.view.oracle import Duck

BAD = {"unreadable": b"[1]", "a function fails": b'{"g":"a","q":"x"}'}
"""Records that a view rejects."""

COUNTS = {"group_by": ["/customer"], "fields": {"/n": "COUNT(*)"}}


def test_rows_without_members_are_deleted_although_no_input_comes() -> None:
    """After a rebuild the table is empty: rows are deleted by the clock, as no commit would ask for it."""
    chain = AggregateChain(COUNTS, inputs=1, partitions=1)
    chain.put(0, "1", {"customer": "a"})
    chain.run()
    (aggregate,) = chain.aggregates
    aggregate.input.clear()
    forget_process()
    aggregate.crash()
    aggregate.advance_time(1)
    assert [(record.key, record.value) for record in aggregate.pending_output("sow")] == [(b"a", None)]


def test_no_row_is_written_before_the_input_that_the_table_has_has_come() -> None:
    """A table that was restored ahead of the input changes no row until the records up to its end have come."""
    chain = AggregateChain(COUNTS, inputs=1, partitions=1)
    chain.put(0, "1", {"customer": "a"})
    chain.run()
    (aggregate,) = chain.aggregates
    for key in ("2", "3", "4"):
        chain.put(0, key, {"customer": "a"})
    chain.run_splits()
    aggregate.crash(feed=False)
    aggregate.feed(2)
    aggregate.advance_time(1)
    aggregate.commit()
    assert chain.rows() == {"a": {"customer": "a", "n": 1}}
    chain.run_aggregates()
    assert chain.rows() == {"a": {"customer": "a", "n": 4}}


def test_row_that_had_to_wait_is_written_although_its_record_was_committed() -> None:
    """While the table is ahead no row is written; if the process rolls back then, the committed records still count."""
    chain = AggregateChain(COUNTS, inputs=1, partitions=1)
    chain.put(0, "1", {"customer": "a"})
    chain.run()
    chain.run()
    (aggregate,) = chain.aggregates
    for key, customer in (("2", "b"), ("3", "c"), ("4", "d")):
        chain.put(0, key, {"customer": customer})
    chain.run_splits()
    for _ in range(2):
        aggregate.abort(feed=False)
        aggregate.feed(1)
        aggregate.commit()
    assert chain.rows().keys() == {"a"}, "the table is ahead of the records that have come"
    aggregate.abort(feed=False)
    chain.run_aggregates()
    assert chain.rows().keys() == {"a", "b", "c", "d"}


@pytest.mark.parametrize("combines", [False, True])
def test_records_of_one_key_in_two_partitions_are_two_members(combines: bool) -> None:
    """Both count, in one group or in two; one that changes its group or is deleted leaves the other one where it is."""
    view = {"group_by": ["/g"], "fields": {"/n": "COUNT(*)", "/s": "SUM(/q)"}, "partial_aggregation": combines}
    chain = AggregateChain(view)

    def rows() -> dict[str, tuple[int, int]]:
        chain.run()
        return {key: (row["n"], row["s"]) for key, row in chain.rows().items() if row is not None}

    for partition, amount in ((0, 5), (1, 3)):
        chain.put(partition, "k", {"g": "a", "q": amount})
    assert rows() == {"a": (2, 8)}
    chain.put(0, "k", {"g": "b", "q": 5})
    assert rows() == {"a": (1, 3), "b": (1, 5)}
    chain.put(0, "k", {"g": "a", "q": 6})
    assert rows() == {"a": (2, 9)}
    for driver in (*chain.splits, *chain.aggregates):
        driver.crash()
    for partition, left in ((1, 6), (0, None)):
        chain.put(partition, "k", None)
        assert rows() == ({} if left is None else {"a": (1, left)})


def test_former_versions_refuse_a_state_with_members_that_they_do_not_know() -> None:
    """They know no member with its partition: they would count such a record a second time, with each update of it."""
    chain = AggregateChain(COUNTS, partitions=1)
    home = partition_for(b"k", 2)
    chain.put(home, "k", {"customer": "a"})
    chain.run()
    fingerprints = [split.marks.get(DEFINITION_MARK) for split in chain.splits]
    assert fingerprints[0] == fingerprints[1] is not None
    chain.put(1 - home, "k", {"customer": "a"})
    chain.run()
    splits = chain.splits[home], chain.splits[1 - home]
    assert [split.marks.get(DEFINITION_MARK) == fingerprints[0] for split in splits] == [True, False]
    for split in splits:
        split.crash()
    chain.put(1 - home, "k", None)
    chain.run()
    assert chain.rows() == {"a": {"customer": "a", "n": 1}}


def test_a_record_that_was_healed_stays_in_its_group_however_late_its_former_partition_is_read() -> None:
    """The record is published at home before its copy is deleted, and the delete comes last: the record counts."""
    chain = AggregateChain(COUNTS, partitions=1)
    for away in (0, 1):
        home, key = 1 - away, f"{away}"
        chain.put(away, key, {"customer": "a"})
        chain.run()
        chain.put(home, key, {"customer": "a"})
        chain.put(away, key, None)
        for partition in (home, away):
            split = chain.splits[partition]
            split.feed()
            split.advance_time(1)
            split.commit()
        chain.run_aggregates()
    assert chain.rows() == {"a": {"customer": "a", "n": 2}}


def test_changes_of_one_transaction_are_one_update() -> None:
    """Several changes of a group between two commits are one SOW record; equal rows are none."""
    chain = AggregateChain(COUNTS, inputs=1, partitions=1)
    for number in range(10):
        chain.put(0, str(number), {"customer": "a", "x": number})
    chain.run()
    (aggregate,) = chain.aggregates
    assert len(aggregate.read_output("sow")) == 1
    chain.put(0, "0", {"customer": "a", "x": "other"})
    chain.run()
    assert len(aggregate.read_output("sow")) == 1


def test_changed_definition_is_refused() -> None:
    """A stage that begins with the rows of another definition says what to do."""
    chain = AggregateChain(COUNTS, inputs=1, partitions=1)
    chain.put(0, "1", {"customer": "a"})
    chain.run()
    (aggregate,) = chain.aggregates
    changed = chain.settings.model_copy(update={"fields": {"/n": "SUM(/qty)"}})
    aggregate._pipeline = aggregate._pipeline._replace(settings=changed)
    with pytest.raises(ConfigurationError, match="sowstream view rebuild v"):
        aggregate.crash()


def test_as_of_names_the_prefix_of_each_input() -> None:
    """The header `as_of` has the offset behind the last record of each input partition, also after a crash."""
    chain = AggregateChain({**COUNTS, "as_of": True}, inputs=2, partitions=1)
    chain.put(0, "1", {"customer": "a"})
    chain.put(1, "2", {"customer": "a"})
    chain.run()
    chain.aggregates[0].crash()
    chain.put(1, "3", {"customer": "a"})
    chain.run()
    headers = dict(chain.aggregates[0].read_output("sow")[-1].headers or ())
    assert headers["as_of"] == b'{"orders.sow/0":1,"orders.sow/1":2}'


def test_projection_writes_a_row_only_when_it_changed() -> None:
    """A projection follows its record, leaves equal rows alone, and deletes the row with the record."""
    driver = projection({"filter": "/x > 0", "fields": {"/id": "/id", "/double": "/x * 2"}})
    for version, record in enumerate(({"id": 1, "x": 2}, {"id": 1, "x": 2, "y": 1}, {"id": 1, "x": 0}), 1):
        driver.pipe_input("1", record, {"version": str(version)})
        driver.commit()
    assert [record.value for record in driver.read_output("sow")] == [b'{"id":1,"double":4}', None]


def amount(value: object) -> int:
    """A function of a third party that fails on anything but an integer."""
    if not isinstance(value, int):
        raise RecordRejected("plugin_failed", f"{value!r} is no amount")
    return value


@pytest.fixture
def amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function AMOUNT."""
    monkeypatch.setitem(BUILT_IN, "AMOUNT", Function("AMOUNT", amount, 1, 1, "nulls"))


@pytest.mark.usefixtures("amounts")
@pytest.mark.parametrize("value", ["unreadable", "a function fails"])
@pytest.mark.parametrize("combines", [False, True])
def test_a_rejected_record_leaves_its_group(combines: bool, value: str) -> None:
    """Its former value is not that of its key any more, so it counts no longer, as in a view that is built later."""
    view = {"group_by": ["/g"], "fields": {"/n": "COUNT(*)", "/s": "SUM(AMOUNT(/q))"}, "partial_aggregation": combines}
    chain = AggregateChain(view, inputs=1, partitions=1)
    for key, quantity in (("1", 5), ("2", 3)):
        chain.put(0, key, {"g": "a", "q": quantity})
    chain.run()
    chain.splits[0].append_input(b"1", BAD[value], [("version", b"2")])
    chain.run()
    assert sum(chain.splits[0].rejections.values()) == 1
    assert chain.rows() == {"a": {"g": "a", "n": 1, "s": 3}}
    chain.put(0, "1", {"g": "a", "q": 4})
    chain.run()
    assert chain.rows() == {"a": {"g": "a", "n": 2, "s": 7}}


def test_a_record_with_a_part_that_is_too_large_leaves_its_group() -> None:
    """Its topic does not take the part, so that the record is a dead letter and does not count."""
    view = {"group_by": ["/g"], "fields": {"/n": "COUNT(*)", "/m": "MAX(/t)"}, "partial_aggregation": False}
    chain = AggregateChain(view, inputs=1, partitions=1)
    (split,) = chain.splits
    for key in ("1", "2"):
        chain.put(0, key, {"g": "a", "t": "x"})
    chain.run()
    split._limits._limits["parts"] = 100_000
    chain.put(0, "2", {"g": "a", "t": "y" * 160_000})
    split.feed(1)
    split.commit()
    chain.put(0, "3", {"g": "b", "t": "x"})
    chain.run()
    assert split.rejections == {"too_large": 1}
    assert chain.rows() == {"a": {"g": "a", "n": 1, "m": "x"}, "b": {"g": "b", "n": 1, "m": "x"}}


@pytest.mark.parametrize("combines", [False, True])
def test_a_record_that_is_skipped_by_order_leaves_its_group(combines: bool) -> None:
    """An operator skips an update that holds a view: the record counts neither with it nor with its former value."""
    view = {"group_by": ["/g"], "fields": {"/n": "COUNT(*)", "/s": "SUM(/q)"}, "partial_aggregation": combines}
    chain = AggregateChain(view, inputs=1, partitions=1)
    (split,) = chain.splits
    for key, amount in (("1", 1), ("2", 10)):
        chain.put(0, key, {"g": "a", "q": amount})
    chain.run()
    chain.put(0, "1", {"g": "a", "q": 5})
    split._task.skip(2, is_readable=True)
    chain.run()
    assert split.rejections == {"skipped": 1}
    assert chain.rows() == {"a": {"g": "a", "n": 1, "s": 10}}
    chain.put(0, "1", {"g": "a", "q": 7})
    chain.run()
    assert chain.rows() == {"a": {"g": "a", "n": 2, "s": 17}}


@pytest.mark.parametrize("kind", ["projection", "join"])
def test_a_record_that_is_skipped_by_order_has_no_row(kind: str) -> None:
    """An operator skips an update that holds a view: the row of the former value is deleted."""
    if kind == "projection":
        driver, write = projection({"fields": {"/s": "/q"}}), lambda: None
        rows = driver
    else:
        chain = JoinChain(VIEW, partitions=1)
        (driver,), (rows,), write = chain.left, chain.last, chain.run
    for number in range(2):
        driver.append_input(b"1", b'{"id":"1","q":%d,"state":"new"}' % number, [("version", b"1")])
        if number:
            driver._task.skip(number, is_readable=True)
        driver.feed()
        driver.commit()
        write()
    assert [record.value is None for record in rows.read_output("sow")] == [False, True]
    assert driver.rejections == {"skipped": 1}


@pytest.mark.usefixtures("amounts")
@pytest.mark.parametrize("value", ["unreadable", "a function fails"])
def test_a_rejected_record_has_no_row_in_a_projection(value: str) -> None:
    """The row of the former value is deleted."""
    driver = projection({"fields": {"/s": "AMOUNT(/q)"}})
    for body in (b'{"q":5}', BAD[value], b'{"q":4}'):
        driver.append_input(b"1", body, [("version", b"1")])
        driver.feed()
        driver.commit()
    assert [record.value for record in driver.read_output("sow")] == [b'{"s":5}', None, b'{"s":4}']
    assert sum(driver.rejections.values()) == 1


@pytest.mark.parametrize("method", ["repartition", "same_key", "broadcast"])
def test_a_rejected_record_leaves_its_join(method: str) -> None:
    """A record that cannot be read any more has no row, and a partner that cannot is none."""
    on = "/id" if method == "same_key" else "/customer"
    view = VIEW | {"join": [{"topic": "customers", "on": {on: "/id"}}], "join_method": method}
    chain = JoinChain(view, partitions=1)
    for key in ("a", "b"):
        chain.put("left", 0, key, {"id": key, "customer": key, "qty": 1, "state": "new"})
        chain.put("right", 0, key, {"id": key, "name": "Ann", "bonus": 1})
    chain.run()
    chain.left[0].append_input(b"a", b"[1]", [("version", b"2")])
    chain.right[0].append_input(b"b", b"[1]", [("version", b"2")])
    for _ in range(2):
        chain.run()
    assert chain.rows() == {"b": {"id": "b", "qty": 1}}
    assert [driver.rejections for driver in (*chain.left, *chain.right)] == [{"not_an_object": 1}] * 2


def test_projection_reads_records_of_another_message_type() -> None:
    """Rows are JSON, and the records of the underlying have the message type of its topic."""
    driver = projection({"fields": {"/id": "/id", "/double": "/x * 2"}}, input_codec=load_codec("msgpack"))
    driver.pipe_input("1", {"id": 1, "x": 2})
    driver.commit()
    assert [record.value for record in driver.read_output("sow")] == [b'{"id":1,"double":4}']
    assert not driver.rejections


def test_view_is_ready_when_each_stage_has_read_its_input() -> None:
    """A stage is not ready while it has input to read, so an idle last stage does not hide a first one that is late."""
    chain = AggregateChain(COUNTS, inputs=1, partitions=1)
    for number in range(3):
        chain.put(0, str(number), {"customer": "a"})
    (split,), (aggregate,) = chain.splits, chain.aggregates
    split.feed(1)
    split.advance_time(1)
    aggregate.advance_time(1)
    assert (split.gauges["view_ready"], aggregate.gauges["view_ready"]) == (0.0, 1.0)
    chain.run()
    split.advance_time(1)
    aggregate.advance_time(1)
    assert (split.gauges["view_ready"], aggregate.gauges["view_ready"]) == (1.0, 1.0)


def test_stage_is_a_processor_like_any_other() -> None:
    """Views use the contract of plug-ins: the stage declares its table and its own input."""
    assert ViewAggregate.keeps_table
    assert ViewAggregate.input.role == "parts"


@pytest.mark.parametrize("kind", [History, MergedHistory, PlainHistory])
def test_rows_of_groups_equal_sql_at_every_step(kind: type[History]) -> None:
    """After every step the rows equal those of DuckDB and of the Python oracle, and the deltas add up to them.

    Each row that was written on the way is that of the prefix of its input that its header `as_of` has.
    """
    duck, having, prefixes, expired = Duck(), 0, 0, 0
    for seed in range(7):
        history = kind(seed, duck)
        for step in range(7):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"
        having += "having" in history.view
        prefixes += history.view["as_of"] or kind is PlainHistory
        expired += history.expired if isinstance(history, MergedHistory) else 1
    assert min(having, prefixes, expired) > 0, "the seeds leave something out"


@pytest.mark.parametrize(
    "kind", [JoinHistory, SameKeyHistory, BroadcastHistory, PlainJoinHistory, PlainBroadcastHistory]
)
@pytest.mark.parametrize("begin", [0, 10])
def test_rows_of_joins_equal_their_definition_at_every_step(begin: int, kind: type[JoinHistory]) -> None:
    """After every step the rows of a join equal those of a loop over both topics, in any order of the stages."""
    for seed in range(begin, begin + 10):
        history = kind(seed)
        for step in range(5):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"


@pytest.mark.parametrize("kind", [PlainJoinHistory, PlainBroadcastHistory])
def test_compiled_and_python_joins_write_the_same_bytes(
    kind: type[JoinHistory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same records, plain or not, both send the same parts and write the same rows and deltas, with headers."""
    if not (compiled_stages.has_compiled and record_writer.has_compiled):
        pytest.skip("they were not compiled here")
    for seed in range(5):
        written = []
        for has_compiled in (True, False):
            for module in (compiled_stages, record_writer):
                monkeypatch.setattr(module, "has_compiled", has_compiled)
            history = kind(seed)
            for _ in range(8):
                assert not history.step()
            sent = [driver.input for driver in history.chain.drivers]
            written.append(
                [*sent, *(last.read_output(role) for last in history.chain.last for role in ("sow", "delta"))]
            )
        assert written[0] == written[1], f"seed {seed}"


SEEDS, STEPS = 12, 6


@pytest.mark.parametrize("bug", OF_GROUPS)
def test_fault_of_groups_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in a stage of a view with groups makes a history differ from its oracle."""
    OF_GROUPS[bug](monkeypatch)
    assert any(_is_found(History(seed)) for seed in range(SEEDS))


@pytest.mark.parametrize("bug", OF_EXTREMES)
def test_fault_of_extremes_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the least and greatest values of a combined view makes a history differ from its oracle."""
    OF_EXTREMES[bug](monkeypatch)
    assert any(_is_found(ExtremesHistory(seed)) for seed in range(SEEDS))


@pytest.mark.parametrize("bug", OF_JOINS)
def test_fault_of_joins_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in a stage of a join makes a history differ from its definition."""
    OF_JOINS[bug](monkeypatch)
    assert any(_is_found(JoinHistory(seed)) for seed in range(SEEDS))


def _is_found(history: History | JoinHistory) -> bool:
    try:
        return any(history.step() for _ in range(STEPS))
    except (AssertionError, KeyError, IndexError, ValueError):
        return True  # The product's own checks, or the oracle's, found it.


def miss(driver: ProcessorTestDriver, *gone: bytes) -> None:
    """Restart a stage after compaction has removed these keys, with their deletes, from its input: they were missed."""
    driver.crash(feed=False)
    present = PresentKeys("orders.sow", 0, 0, len(driver.input), driver._task.state)
    present.take([record if record.key not in gone else record._replace(value=None) for record in driver.input])
    present.finish(len(driver.input))
    driver._task.process(present.deletes(driver.committed_offset))


@pytest.mark.parametrize("crashes", [False, True])
def test_a_record_whose_delete_was_compacted_away_leaves_its_group(crashes: bool) -> None:
    """The rest of its group stays, and a group without members loses its row, also if the process dies meanwhile."""
    chain = AggregateChain(COUNTS, inputs=1, partitions=1)
    for key, customer in (("1", "a"), ("2", "a"), ("3", "b")):
        chain.put(0, key, {"customer": customer})
    chain.run()
    (split,) = chain.splits
    for _ in range(1 + crashes):
        miss(split, b"1", b"3")
    chain.run()
    assert chain.rows() == {"a": {"customer": "a", "n": 1}}
    assert split.committed_offset == 3
    chain.put(0, "3", {"customer": "a"})
    chain.run()
    assert chain.rows() == {"a": {"customer": "a", "n": 2}}


def test_a_record_whose_delete_was_compacted_away_leaves_a_projection() -> None:
    """Its row is deleted, and no other."""
    rows = projection({"fields": {"/id": "/id"}})
    rows.pipe_batch([(key, {"id": key}, {"version": "1"}) for key in ("1", "2")])
    rows.commit()
    miss(rows, b"1")
    rows.commit()
    assert [(record.key, record.value) for record in rows.read_output("sow")[2:]] == [(b"1", None)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_record_whose_delete_was_compacted_away_leaves_a_join(side: str) -> None:
    """Without the record of the underlying there is no row, and without the partner its fields are missing."""
    chain = JoinChain(VIEW, partitions=1)
    chain.put("left", 0, "1", {"id": "1", "customer": "a", "qty": 2, "state": "new"})
    chain.put("right", 0, "a", {"id": "a", "name": "Ann", "bonus": 1})
    chain.run()
    assert chain.rows() == {"1": {"id": "1", "qty": 2, "name": "Ann", "both": 3}}
    (stage,) = getattr(chain, side)
    miss(stage, b"1", b"a")
    chain.run()
    assert chain.rows() == ({} if side == "left" else {"1": {"id": "1", "qty": 2}})
