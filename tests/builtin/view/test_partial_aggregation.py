"""Views that combine: equal to SQL, compiled or not, through crashes, and after parts of an older version."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from processor.builtin.view import definitions, partial_aggregate
from processor.builtin.view.partial_aggregate import ViewPartialAggregate
from processor.builtin.view.split import ViewSplit
from processor.builtin.view.start_pass import forget_process
from processor.config import ViewConfig
from processor.errors import ConfigurationError
from processor.filter.aggregate import combines
from processor.wire.view_parts import member_key
from tests.builtin.view.chain import AggregateChain
from tests.builtin.view.histories import PartialHistory
from tests.builtin.view.oracle import Duck

if TYPE_CHECKING:
    from processor.record import Headers
    from processor.testing import ProcessorTestDriver

VIEW = {
    "group_by": ["/customer"],
    "fields": {"/n": "COUNT(*)", "/qty": "SUM(/qty)", "/mean": "AVG(/qty)", "/priced": "COUNT(/px)"},
}


@pytest.fixture(params=["compiled", "python"])
def is_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if the compiled function reads plain records; skips where there is none."""
    if request.param == "python":
        monkeypatch.setattr(partial_aggregate, "has_compiled", False)
    elif not partial_aggregate.has_compiled:
        pytest.skip("it was not compiled here")
    return request.param == "compiled"


@pytest.mark.usefixtures("is_compiled")
def test_rows_equal_sql_at_every_step() -> None:
    """After every step, through crashes and rollbacks, the rows equal those of DuckDB and of the Python oracle."""
    duck, simple = Duck(), 0
    for seed in range(10):
        history = PartialHistory(seed, duck)
        for step in range(5):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"
        simple += "filter" not in history.view
    assert 0 < simple < 10, "the seeds leave something out"


def test_compiled_and_python_write_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same records, plain or not, both write the same rows and deltas, with the same headers."""
    if not partial_aggregate.has_compiled:
        pytest.skip("it was not compiled here")
    for seed in range(5):
        written = []
        for has_compiled in (True, False):
            monkeypatch.setattr(partial_aggregate, "has_compiled", has_compiled)
            written.append(_outputs(seed))
        assert written[0] == written[1], f"seed {seed}"


def test_group_that_has_lost_its_records_unseen_loses_its_row() -> None:
    """A new process without disks, to which only the tombstones of a group come, deletes the row."""
    chain = AggregateChain(VIEW, inputs=1, partitions=1)
    chain.put(0, "k1", {"customer": "ann", "qty": 1})
    chain.put(0, "k2", {"customer": "bob", "qty": 2})
    chain.run()
    assert {*chain.rows()} >= {"ann", "bob"}
    chain.put(0, "k1", None)
    (split,) = chain.splits
    split.crash(feed=False)  # The table is restored to the tombstone: the group is never built.
    chain.run()
    assert [key for key, row in chain.rows().items() if row is not None] == ["bob"]


@pytest.mark.usefixtures("is_compiled")
def test_one_part_is_sent_for_a_group_and_transaction() -> None:
    """However many records of a group change in a transaction, its partition sends one part."""
    chain = AggregateChain(VIEW, inputs=1, partitions=1)
    chain.is_compact = True
    chain.run()
    for number in range(100):
        chain.put(0, f"k{number}", {"customer": "ann", "qty": number})
    chain.run()
    (split,) = chain.splits
    assert len(split.read_output("parts@0")) == 1
    assert chain.rows()["ann"]["qty"] == sum(range(100))


@pytest.mark.usefixtures("is_compiled")
def test_unreadable_record_is_rejected_and_counts_nowhere() -> None:
    """A record that is no JSON has a dead letter, and its former state leaves its group."""
    chain = AggregateChain(VIEW, inputs=1, partitions=1)
    chain.put(0, "k1", {"customer": "ann", "qty": 1})
    chain.put(0, "k2", {"customer": "ann", "qty": 2})
    chain.run()
    (split,) = chain.splits
    split.append_input(b"k1", b"{", [("version", b"2")])
    chain.run()
    assert split.rejections == {"undecodable": 1}
    assert chain.rows()["ann"]["qty"] == 2


def test_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history differs from its oracle if former states stay in their groups."""
    monkeypatch.setattr(partial_aggregate, "has_compiled", False)
    monkeypatch.setattr(ViewPartialAggregate, "_former_contributions", lambda _self, _states: [])
    assert any(PartialHistory(seed).step() for seed in range(5) for _ in range(3))


@pytest.mark.parametrize(
    ("view", "is_combined"),
    [
        ({}, True),
        ({"fields": {"/sd": "STDDEV_POP(UPPER(/px))"}, "filter": "/px > ABS(/qty)"}, True),
        ({"fields": {"/n": "COUNT(*)", "/low": "MIN(/px)"}}, False),
        ({"fields": {"/n": "COUNT_DISTINCT(/px)"}}, False),
        ({"filter": "LAST_UPDATED() > 5"}, False),
        ({"fields": {"/n": "SUM(MESSAGE_SIZE())"}}, False),
        ({"fields": {"/n": "SUM(OF_SOMEBODY(/px))"}}, False),
        ({"fields": {"/n": "SUM(("}}, False),
        ({"as_of": True}, False),
        ({"group_by": None, "fields": {"/n": "/px"}}, False),
    ],
)
def test_view_combines_if_its_aggregates_add_up(view: dict[str, Any], *, is_combined: bool) -> None:
    """Extremes and distinct values, metadata, functions of third parties and `as_of` take a part for each record."""
    assert combines(ViewConfig.model_validate({"underlying": "orders"} | VIEW | view)) == is_combined


def _older_version(patch: pytest.MonkeyPatch) -> None:
    """Send a part for each record, as the version before views combined."""
    for module in (
        "tests.builtin.view.chain",
        "processor.builtin.view.definitions",
        "processor.builtin.view.aggregate",
    ):
        patch.setattr(f"{module}.combines", lambda _view: False)


def _upgrade(driver: ProcessorTestDriver) -> None:
    """Replace a stage of an older version by that of this one."""
    if driver.pipeline.processor_type is ViewSplit:
        driver._pipeline = driver.pipeline._replace(processor_type=ViewPartialAggregate)
    driver.crash(feed=False)


@pytest.mark.usefixtures("is_compiled")
def test_view_goes_on_from_parts_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the upgrade of a view that has parts of records its rows follow, at every step and through crashes."""
    for seed in range(12):
        with monkeypatch.context() as patch:
            _older_version(patch)
            history = PartialHistory(seed)
            for step in range(3):
                assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"
        forget_process()
        for driver in (*history.chain.splits, *history.chain.aggregates):
            _upgrade(driver)
        for step in range(4):
            assert not (wrong := history.step()), f"seed {seed}, step {step} after the upgrade: {wrong}"


def test_no_row_changes_while_a_view_begins_to_combine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions are upgraded one after the other: no part is counted twice, and none is missed, at any commit.

    Keys of records are numbers of partitions, and the keys under which the state has groups.
    """
    with monkeypatch.context() as patch:
        _older_version(patch)
        chain = AggregateChain(VIEW, inputs=3, partitions=1)
        for number, key in enumerate(("0", "1", "2", "gann", "gbob", "p0", "p1", "0", "gann")):
            chain.put(number % 3, key, {"customer": "ann" if number < 5 else "bob", "qty": number})
        chain.run()
    (aggregate,) = chain.aggregates
    before = chain.rows()
    assert before["ann"]["qty"] == sum(range(5))
    _upgrade(aggregate)
    for split in chain.splits:
        _upgrade(split)
        for _ in range(5):
            split.advance_time(1, punctuations_max=1)
            split.commit()
        while aggregate.has_input:
            aggregate.feed(1)
            aggregate.advance_time(1)
            aggregate.commit()
    assert len(aggregate.read_output("sow")) == len(before), "a row was written again"
    chain.put(0, "new", {"customer": "ann", "qty": 100})
    chain.run()
    assert chain.rows()["ann"]["qty"] == before["ann"]["qty"] + 100
    (tombstones,) = [[record.key for record in aggregate.input if record.value is None]]
    assert len(tombstones) == 9


def test_older_version_refuses_a_view_that_combines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of parts of groups have another fingerprint, so a version that knows none of these does not begin."""
    chain = AggregateChain(VIEW, inputs=1, partitions=1)
    chain.put(0, "k1", {"customer": "ann", "qty": 1})
    chain.run()
    _older_version(monkeypatch)
    for driver in (*chain.splits, *chain.aggregates):
        with pytest.raises(ConfigurationError, match="sowstream view rebuild v"):
            driver.crash(feed=False)


def test_view_with_the_setting_of_an_older_version_keeps_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that was made with `partial_aggregation` is the same one for the older version, before and after."""
    with monkeypatch.context() as patch:
        patch.setattr(definitions, "_COMBINED", "partial_aggregation")
        patch.setattr(partial_aggregate, "partition_key", lambda group, number: member_key(group, b"%d" % number))
        chain = AggregateChain(VIEW, inputs=1, partitions=1)
        chain.put(0, "k1", {"customer": "ann", "qty": 1})
        chain.run()
        (split,), (aggregate,) = chain.splits, chain.aggregates
        marks = split.marks.get(b"definition"), aggregate.marks.get(b"definition")
    for driver in (split, aggregate):
        driver.crash(feed=False)
    chain.put(0, "k2", {"customer": "ann", "qty": 2})
    chain.run()
    assert {record.key for record in aggregate.input} == {member_key(b"ann", b"0")}
    assert (split.marks.get(b"definition"), aggregate.marks.get(b"definition")) == marks
    assert chain.rows()["ann"]["qty"] == 3


def _outputs(seed: int) -> dict[tuple[str, bytes | None], list[tuple[bytes | None, Headers | None]]]:
    """The rows and deltas of random records, of which most are plain, by topic and key."""
    rng = random.Random(seed)
    chain = AggregateChain(VIEW, inputs=2, partitions=1)
    values: tuple[Any, ...] = (1, 2, 3.5, -0.25, 10**17, None, "4", "x", True, [5], 0, 2.0, 10**20, 1e300)
    for _ in range(8):
        for _ in range(30):
            chain.is_compact = rng.random() < 0.9
            number = rng.randrange(20)
            record: dict[str, Any] = {"id": number, "qty": rng.choice(values), "px": rng.choice(values)}
            customer = rng.choice(("a", "b", "7", 7, "", None, "ü", 'q"'))
            record |= {"customer": customer} if rng.random() < 0.95 else {}
            chain.put(number % 2, f"k{number}", record if rng.random() < 0.9 else None)
        chain.run()
        if rng.random() < 0.3:
            chain.splits[0].crash(feed=False)
    (aggregate,) = chain.aggregates
    outputs: dict[tuple[str, bytes | None], list[tuple[bytes | None, Headers | None]]] = {}
    for role in ("sow", "delta"):
        for record in aggregate.read_output(role):
            outputs.setdefault((role, record.key), []).append((record.value, record.headers))
    return outputs
