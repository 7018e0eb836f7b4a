"""Large groups are built in pieces; a pass goes on where it was; and rows are written together."""

from __future__ import annotations

import json

import pytest

from processor.builtin.view import aggregate as groups_module
from processor.builtin.view import start_pass
from processor.builtin.view.start_pass import StartPass, forget_process
from tests.builtin.view.chain import AggregateChain
from tests.builtin.view.histories import History

VIEW = {"group_by": ["/customer"], "fields": {"/n": "COUNT(*)", "/low": "MIN(/n)"}}


def large(members: int) -> AggregateChain:
    """A chain with a group of so many members and a small one, whose aggregate has just been started."""
    chain = AggregateChain(VIEW, inputs=1, partitions=1)
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
    chain = AggregateChain(VIEW, inputs=1, partitions=1)
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
