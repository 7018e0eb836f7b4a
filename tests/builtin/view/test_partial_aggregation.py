"""Views with partial aggregation: equal to SQL, compiled or not, through crashes, and refused where sums do not do."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from processor.builtin.view import compiled_stages, kept_groups, partial_aggregate
from processor.builtin.view.definitions import check_fingerprint
from processor.builtin.view.partial_aggregate import ViewPartialAggregate
from processor.builtin.view.stage_output import Contributions
from processor.config import ViewConfig
from processor.errors import ConfigurationError
from processor.filter.aggregate.combining import combines_plainly
from processor.hosting import record_writer
from processor.wire.view_parts import fingerprint
from tests.builtin.view.chain import AggregateChain
from tests.builtin.view.histories import ExtremesHistory, PartialHistory
from tests.builtin.view.oracle import Duck

if TYPE_CHECKING:
    from processor.api import Context
    from processor.record import Headers

VIEW = {
    "group_by": ["/customer"],
    "fields": {"/n": "COUNT(*)", "/qty": "SUM(/qty)", "/mean": "AVG(/qty)", "/priced": "COUNT(/px)"},
    "partial_aggregation": True,
}


@pytest.fixture(params=["compiled", "python"])
def is_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if the compiled function reads plain records; skips where there is none."""
    if request.param == "python":
        monkeypatch.setattr(compiled_stages, "has_compiled", False)
    elif not compiled_stages.has_compiled:
        pytest.skip("it was not compiled here")
    return request.param == "compiled"


@pytest.mark.usefixtures("is_compiled")
def test_rows_equal_sql_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every step, through crashes and rollbacks, the rows equal those of DuckDB and of the Python oracle.

    So do they where the last stage keeps one group in memory, and builds the others from their parts.
    """
    duck, simple = Duck(), 0
    for seed in range(10):
        monkeypatch.setattr(kept_groups, "GROUPS_MAX", 100 if seed % 2 else 1)
        history = PartialHistory(seed, duck)
        for step in range(5):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"
        simple += "filter" not in history.view
    assert 0 < simple < 10, "the seeds leave something out"


def test_rows_equal_sql_where_totals_are_in_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do they where the totals of all groups, or of all but one, are in the state and come back for each change."""
    if not compiled_stages.has_compiled:
        pytest.skip("it was not compiled here")
    monkeypatch.setattr(partial_aggregate, "_PIECE", 2)
    duck, settled = Duck(), 0
    for seed in range(20):
        monkeypatch.setattr(partial_aggregate, "_GROUPS_MAX", seed % 2)
        history = PartialHistory(seed, duck)
        for step in range(6):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"
        records = [each for split in history.chain.splits for each in split.read_output("sow")]
        settled += sum(b":" in (each.value or b"") for each in records)
    assert settled > 50, "few totals were in the state"


def test_extremes_equal_their_definition_at_every_step() -> None:
    """So do `MIN` and `MAX` of values of any kind, where all nearest values leave, and groups are in the state."""
    refills = {True: 0, False: 0}
    for seed in range(24):
        history = ExtremesHistory(seed)
        for step in range(6):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"
        refills[history.is_compiled] += history.refills
    assert refills[False] > 5, "few extremes were lost"
    assert refills[True] > 5 or not compiled_stages.has_compiled, "few extremes were lost"


EXTREMES_VIEW = {
    "group_by": ["/customer"],
    "fields": {"/low": "MIN(/qty)", "/high": "MAX(/qty)", "/n": "COUNT(/px)", "/worst": "MAX(/px)"},
    "partial_aggregation": True,
}


@pytest.mark.usefixtures("is_compiled")
def test_part_of_a_group_whose_extreme_is_lost_waits_for_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are read again a piece at a time, others' parts are sent meanwhile, and changes on the way count."""
    monkeypatch.setattr(partial_aggregate, "_KEPT_MAX", 4)
    monkeypatch.setattr(partial_aggregate, "_PIECE", 5)
    chain = AggregateChain(EXTREMES_VIEW, inputs=1, partitions=1)
    chain.is_compact = True
    for number in range(30):
        chain.put(0, f"k{number:02}", {"customer": "ann", "qty": number})
    chain.put(0, "other", {"customer": "bob", "qty": 1})
    chain.run()
    assert chain.rows()["ann"]["low"] == 0
    (split,) = chain.splits
    for number in range(5):
        chain.put(0, f"k{number:02}", None)  # These were nearest.
    chain.put(0, "other", {"customer": "bob", "qty": 2})
    split.feed()
    split.commit()
    split.advance_time(1, punctuations_max=2)
    split.commit()
    chain.run_aggregates()
    assert (chain.rows()["ann"]["low"], chain.rows()["bob"]["low"]) == (0, 2), "the part is held back"
    assert split.gauges["view_ready"] == 0
    chain.put(0, "k05", None)  # It was read again already.
    chain.put(0, "k06", {"customer": "bob", "qty": 3})
    chain.put(0, "k29", {"customer": "ann", "qty": 6.5})  # It will be.
    chain.put(0, "k28", None)
    chain.run()
    rows = chain.rows()
    assert (rows["ann"]["low"], rows["ann"]["high"], rows["bob"]["high"]) == (6.5, 27, 3)
    assert split.gauges["view_ready"] == 1
    chain.put(0, "k29", None)
    chain.run()
    assert chain.rows()["ann"]["low"] == 7, "a record that came before it was read again counts once"


def counted_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an element for each piece of records that a first stage reads again."""
    passes: list[int] = []
    real = ViewPartialAggregate._refill_some

    def refill(stage: ViewPartialAggregate) -> None:
        passes.append(1)
        real(stage)

    monkeypatch.setattr(ViewPartialAggregate, "_refill_some", refill)
    return passes


@pytest.mark.usefixtures("is_compiled")
def test_extremes_that_leave_one_after_the_other_are_read_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group keeps twice as many values each time, so that the least of values that rise costs few passes."""
    monkeypatch.setattr(partial_aggregate, "_KEPT_MAX", 4)
    passes = counted_passes(monkeypatch)
    chain = AggregateChain(EXTREMES_VIEW, inputs=1, partitions=1)
    chain.is_compact = True
    for number in range(100 + 400):
        chain.put(0, f"k{number % 100}", {"customer": "ann", "qty": number})
        if number >= 100:
            chain.run_splits()
    chain.run()
    assert chain.rows()["ann"] == {"customer": "ann", "low": 400, "high": 499, "n": 0, "worst": None}
    assert 0 < len(passes) < 8


@pytest.mark.usefixtures("is_compiled")
def test_values_of_a_partition_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extreme keeps 16 values where the partition has too many, and rows are right."""
    monkeypatch.setattr(partial_aggregate, "_ROOM_MAX", 0)
    passes = counted_passes(monkeypatch)
    chain = AggregateChain(EXTREMES_VIEW, inputs=1, partitions=1)
    chain.is_compact = True
    for number in range(40):
        chain.put(0, f"k{number}", {"customer": "ann", "qty": number})
    chain.run()
    for number in range(20):
        chain.put(0, f"k{number}", None)
    chain.run()
    assert (chain.rows()["ann"]["low"], chain.rows()["ann"]["high"]) == (20, 39)
    assert passes


@pytest.mark.usefixtures("is_compiled")
def test_crash_while_records_are_read_again_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next instance builds all groups, and sends the part that was held back."""
    monkeypatch.setattr(partial_aggregate, "_KEPT_MAX", 2)
    monkeypatch.setattr(partial_aggregate, "_PIECE", 2)
    for keeps_store in (True, False):
        chain = AggregateChain(EXTREMES_VIEW, inputs=1, partitions=1)
        for number in range(8):
            chain.put(0, f"k{number}", {"customer": "ann", "qty": number})
        chain.run()
        for number in range(3):
            chain.put(0, f"k{number}", None)
        (split,) = chain.splits
        split.feed()
        split.commit()
        split.advance_time(1, punctuations_max=1)
        split.commit()
        split.crash(keep_store=keeps_store, feed=False)
        chain.run()
        assert chain.rows()["ann"]["low"] == 3


def test_update_that_changes_no_extreme_sends_nothing() -> None:
    """Most updates of a group with plain records have values between its least and its greatest one."""
    if not compiled_stages.has_compiled:
        pytest.skip("it was not compiled here")
    chain = AggregateChain({**EXTREMES_VIEW, "fields": {"/low": "MIN(/qty)", "/high": "MAX(/qty)"}}, inputs=1)
    chain.is_compact = True
    for number in range(10):
        chain.put(0, f"k{number}", {"customer": "ann", "qty": number})
    chain.run()
    (split,) = chain.splits
    before = sum(len(split.read_output(f"parts@{number}")) for number in range(2))
    for qty in (5, 5.0, 1, 8.5):
        chain.put(0, "k5", {"customer": "ann", "qty": qty})
        chain.run()
    assert sum(len(split.read_output(f"parts@{number}")) for number in range(2)) == before
    chain.put(0, "k5", {"customer": "ann", "qty": 9.5})
    chain.run()
    assert sum(len(split.read_output(f"parts@{number}")) for number in range(2)) == before + 1
    assert chain.rows()["ann"]["high"] == 9.5


SINGLE_VIEW = {
    "group_by": ["/customer"],
    "fields": {"/n": "COUNT(*)", "/low": "MIN(/qty)", "/high": "MAX(/qty)", "/last": "LAST(/px)"},
    "as_of": True,
}


@pytest.mark.parametrize("view", [VIEW, EXTREMES_VIEW, SINGLE_VIEW], ids=["combined", "extremes", "single"])
def test_compiled_and_python_write_the_same_bytes(view: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same records, plain or not, both write the same rows and deltas, with the same headers."""
    modules = compiled_stages, record_writer
    if not all(module.has_compiled for module in modules):
        pytest.skip("it was not compiled here")
    for seed in range(5):
        written = []
        for has_compiled in (True, False):
            for module in modules:
                monkeypatch.setattr(module, "has_compiled", has_compiled)
            written.append(_outputs(seed, view))
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


def test_plain_parts_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of groups whose parts are plain are made without a parsed part, also those built from the table."""
    if not compiled_stages.has_compiled:
        pytest.skip("it was not compiled here")
    parsed: list[bytes] = []
    real = Contributions.decode_many
    monkeypatch.setattr(Contributions, "decode_many", lambda self, data: parsed.extend(data) or real(self, data))
    chain = AggregateChain(VIEW, inputs=2, partitions=1)
    chain.is_compact = True
    for number in range(40):
        chain.put(number % 2, f"k{number % 8}", {"customer": f"c{number % 3}", "qty": number / 4, "px": None})
        chain.run()
        if number == 20:
            chain.aggregates[0].crash(feed=False)
    assert not parsed
    assert sum(row["n"] for row in chain.rows().values()) == 8


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


@pytest.mark.parametrize("moment", ["flush", "start"])
def test_a_part_that_is_too_large_for_its_topic_holds_nothing_up(moment: str) -> None:
    """The greatest text of a group stands in its part twice: its row stays as it was, and those of others go on."""
    view = {"group_by": ["/g"], "fields": {"/n": "COUNT(*)", "/m": "MAX(/t)"}, "partial_aggregation": True}
    chain = AggregateChain(view, inputs=1, partitions=1)
    (split,) = chain.splits
    chain.put(0, "1", {"g": "a", "t": "x"})
    chain.run()
    split._limits._limits["parts"] = 300_000
    chain.put(0, "2", {"g": "a", "t": "y" * 160_000})
    chain.put(0, "3", {"g": "b", "t": "x"})
    if moment == "start":
        split.crash()
    chain.run()
    assert split.committed_offset == 3
    assert split.events["rows_refused"] > 0
    assert chain.rows() == {"a": {"g": "a", "n": 1, "m": "x"}, "b": {"g": "b", "n": 1, "m": "x"}}
    chain.put(0, "2", None)
    chain.run()
    assert chain.rows()["a"]["n"] == 1
    chain.put(0, "4", {"g": "a", "t": "z"})
    chain.run()
    assert chain.rows()["a"] == {"g": "a", "n": 2, "m": "z"}


@pytest.mark.usefixtures("is_compiled")
@pytest.mark.parametrize("has_unreadable", [False, True])
def test_new_view_reads_its_backlog_once(has_unreadable: bool) -> None:
    """Its table has the records; they are read again only if one of them is to be rejected."""
    chain = AggregateChain(VIEW, inputs=1, partitions=1)
    (split,) = chain.splits
    values = [b'{"customer":"ann","qty":1}'] * 10 + [b"{"] * has_unreadable
    for number, value in enumerate(values):
        split.append_input(b"k%d" % number, value, [("version", b"1")])
    split.crash(feed=False)  # The table is restored to the end.
    split.advance_time(1)
    assert split._task.next_offset == (0 if has_unreadable else 10)
    chain.run()
    assert split.rejections == ({"undecodable": 1} if has_unreadable else {})
    assert chain.rows()["ann"]["n"] == 10
    chain.put(0, "k3", {"customer": "bob", "qty": 2})
    chain.run()
    assert {group: row["n"] for group, row in chain.rows().items() if row} == {"ann": 9, "bob": 1}


def test_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history differs from its oracle if former states stay in their groups."""
    monkeypatch.setattr(compiled_stages, "has_compiled", False)
    monkeypatch.setattr(ViewPartialAggregate, "_former_contributions", lambda _self, states: [None] * len(states))
    assert any(PartialHistory(seed).step() for seed in range(5) for _ in range(3))


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ({"fields": {"/low": "MIN(/px)", "/first": "FIRST(/px)"}}, "FIRST of parts of a group"),
        ({"fields": {"/n": "COUNT(*)"}, "filter": "LAST_UPDATED() > 5"}, "the metadata of a record's former state"),
    ],
)
def test_definitions_that_do_not_add_up_are_refused(view: dict[str, Any], message: str) -> None:
    """Aggregates that need each record, and metadata, are errors before anything starts."""
    settings = ViewConfig.model_validate(
        {"underlying": "orders", "group_by": ["/customer"], "partial_aggregation": True} | view
    )
    with pytest.raises(ConfigurationError, match=message):
        ViewPartialAggregate.check("v.split", settings, None)


@pytest.mark.parametrize(
    ("view", "message_type", "combines"),
    [
        ({}, "json", True),
        ({"having": "/n > 1"}, "json", True),
        ({}, "msgpack", False),
        ({"as_of": True}, "json", False),
        ({"filter": "/px > 1"}, "json", False),
        ({"group_by": ["/customer", "/shop"]}, "json", False),
        ({"group_by": []}, "json", False),
        ({"fields": {"/n": "SUM(/qty * /px)"}}, "json", False),
        ({"fields": {"/n": "STDDEV_POP(/qty)"}}, "json", False),
        ({"fields": {"/n": "SUM(/qty)", "/worst": "MAX(/px)"}}, "json", True),
        ({"fields": {"/n": "SUM(/qty)", "/last": "LAST(/px)"}}, "json", False),
        ({"fields": {f"/n{number}": f"SUM(/a{number})" for number in range(9)}}, "json", False),
    ],
)
def test_definition_decides_whether_a_new_view_combines(
    view: dict[str, Any], message_type: str, combines: bool
) -> None:
    """A new view combines if its records need no parsing for it."""
    definition = {"underlying": "orders", "group_by": ["/customer"], "fields": {"/n": "SUM(/qty)"}} | view
    assert combines_plainly(ViewConfig.model_validate(definition), message_type) is combines


def test_rows_of_other_parts_are_refused_with_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view whose rows were computed from parts of records names the setting that keeps these, and the rebuild."""
    view = {"underlying": "orders"} | VIEW
    for keys_version, message in (
        (2, "`partial_aggregation: false`.*`sowstream view rebuild v`"),
        (1, "view rebuild v"),
    ):
        single = ViewConfig.model_validate(view | {"partial_aggregation": False})
        former = fingerprint(single, keys_version=keys_version)
        with monkeypatch.context() as patched:
            patched.setattr(
                "processor.builtin.view.definitions.fingerprint", lambda *_args, _former=former, **_more: _former
            )
            chain = AggregateChain(view, inputs=1, partitions=1)
            chain.put(0, "k1", {"customer": "ann", "qty": 1})
            chain.run()
        with pytest.raises(ConfigurationError, match=message):
            chain.splits[0].crash()


def test_as_of_is_to_be_removed_to_keep_combined_rows() -> None:
    """A view of combined parts that gets `as_of` is told to remove it: no setting of the parts allows both."""
    view = {"underlying": "orders"} | VIEW
    former = fingerprint(ViewConfig.model_validate(view))
    context = SimpleNamespace(name="v", marks=SimpleNamespace(get=lambda _key: former))
    now = ViewConfig.model_validate(view | {"partial_aggregation": False, "as_of": True})
    with pytest.raises(ConfigurationError, match=r"one for each group and partition.*; remove `as_of` to keep them"):
        check_fingerprint(cast("Context", context), now)


def _outputs(
    seed: int, view: dict[str, Any]
) -> dict[tuple[str, bytes | None], list[tuple[bytes | None, Headers | None]]]:
    """The rows and deltas of random records, of which most are plain, by topic and key."""
    rng = random.Random(seed)
    chain = AggregateChain(view, inputs=2, partitions=1)
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
