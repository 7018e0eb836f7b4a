"""The demo's self-check can fail: any fault on a topic is found by its check."""

from __future__ import annotations

import pytest

from processor.trial.demo.check import PublishOracle, TopicRecord
from tests.trial.demo.world import Log, entry, failures


def replaced(log: list[TopicRecord], at: int, **changes: object) -> None:
    """Replace one record by another."""
    log[at] = log[at]._replace(**changes)


def test_a_world_without_a_fault_passes() -> None:
    """Every check holds if the topics follow from the publications by the rules."""
    assert failures(lambda orders, conflated: None) == []


def test_a_dropped_delta_fails() -> None:
    """A delta that is missing shows as a gap, as a wrong replay and as an unaccounted record."""
    assert failures(lambda orders, conflated: orders["delta"].pop(1)) == [
        "orders: 7 sent = 5 merged + 1 rejected",
        "orders: no version missing or twice in 5 deltas",
    ]


def test_a_last_delta_dropped_fails() -> None:
    """Without its last delta, the replay differs from the SOW topic."""
    assert "orders.delta replayed equals orders.sow: 2 records" in failures(
        lambda orders, conflated: orders["delta"].pop(2)
    )


def test_a_delta_twice_fails() -> None:
    """A delta delivered twice, as after a broken transaction, is a repeated version."""
    assert "orders: no version missing or twice in 7 deltas" in failures(
        lambda orders, conflated: orders["delta"].insert(2, orders["delta"][1])
    )


def test_a_sow_record_twice_fails() -> None:
    """A repeated SOW record is found, although the last state would hide it."""
    assert failures(lambda orders, conflated: orders["sow"].insert(2, orders["sow"][1])) == [
        "orders: no version missing or twice in 6 deltas"
    ]


@pytest.mark.parametrize("wrong", [{"id": 1, "qty": 4}, {"id": 1, "qty": 3.0}, {"id": 1, "qty": True}, {"id": 1}])
def test_a_wrong_sow_value_fails(wrong: object) -> None:
    """A SOW record that differs from the oracle is found, even if only by the type of a number."""
    found = failures(lambda orders, conflated: replaced(orders["sow"], 2, value=entry("", wrong).value))
    assert found == [
        "orders.sow equals an independent fold: 2 records",
        "orders.delta replayed equals orders.sow: 2 records",
        "orders_1s.sow equals orders.sow: 2 records",
    ]


def test_a_wrong_version_fails() -> None:
    """The right record under the wrong version is not the same state."""
    assert "orders.sow equals an independent fold: 2 records" in failures(
        lambda orders, conflated: replaced(orders["sow"], 2, headers={"version": "4"})
    )


def test_a_version_gap_fails() -> None:
    """A delta on an unknown version is a gap."""
    found = failures(lambda orders, conflated: replaced(orders["delta"], 1, headers={"version": "3"}))
    assert "orders: no version missing or twice in 6 deltas" in found


def test_a_deleted_key_that_stays_fails() -> None:
    """A missing tombstone leaves a key that the oracle does not have."""
    orders_after_delete = "orders.sow equals an independent fold: 1 records"
    assert orders_after_delete in failures(
        lambda orders, conflated: (orders["publish"].pop(6), orders["sow"].__delitem__(slice(4, 6))), sent=6
    )


def test_a_removed_field_that_stays_fails() -> None:
    """A delta without its `removed` leaves a field that the SOW record does not have."""
    assert failures(lambda orders, conflated: replaced(orders["delta"], 2, headers={"version": "3"})) == [
        "orders.delta replayed equals orders.sow: 2 records"
    ]


def test_a_stale_conflated_state_fails() -> None:
    """A conflated topic without its last update does not equal the underlying topic."""

    def spoil(orders: dict[str, list[TopicRecord]], conflated: dict[str, list[TopicRecord]]) -> None:
        conflated["sow"].pop(1)
        conflated["delta"].pop(1)

    assert failures(spoil) == ["orders_1s.sow equals orders.sow: 2 records"]


def test_a_conflated_delta_without_its_base_fails() -> None:
    """A delta that skips versions needs a header with its base version."""
    found = failures(
        lambda orders, conflated: replaced(conflated["delta"], 1, headers={"version": "3", "removed": '["/credit"]'})
    )
    assert found == ["orders_1s: nothing rejected, no version skipped unsaid in 3 deltas"]


def test_a_key_twice_in_its_interval_fails() -> None:
    """Two updates of one key closer than the interval are one too many."""
    assert failures(lambda orders, conflated: replaced(conflated["delta"], 1, timestamp_ms=1400)) == [
        "orders_1s: no key twice within 1 s"
    ]


def test_a_lost_publication_fails() -> None:
    """A publication that is missing on the publish topic is found by the number sent."""
    assert failures(lambda orders, conflated: None, sent=8) == ["orders: 8 sent = 6 merged + 1 rejected"]


def test_a_rejection_without_a_dead_letter_fails() -> None:
    """A spoilt record must be in the dead-letter topic."""
    assert failures(lambda orders, conflated: orders["dlq"].clear()) == ["orders: 7 sent = 6 merged + 0 rejected"]


def test_a_good_record_in_the_dead_letters_fails() -> None:
    """A good record among the dead letters is found, although the numbers agree."""
    assert failures(lambda orders, conflated: replaced(orders["dlq"], 0, headers={"source": "orders.publish/0/3"})) == [
        "orders: 7 sent = 6 merged + 1 rejected"
    ]


def test_the_oracle_merges_by_the_rules() -> None:
    """Objects merge, all else replaces, null is the same as missing, other keys in a body are rejected."""
    oracle = PublishOracle("id")
    for body in ({"id": 1, "a": {"x": 1}, "b": [1, 2]}, {"id": 1, "a": {"y": None, "z": 2}, "b": [3]}, {"id": 2}):
        oracle.take(entry("1", body))
    assert oracle.records == {"1": {"id": 1, "a": {"x": 1, "z": 2}, "b": [3]}}
    assert oracle.versions == {"1": 2}
    assert len(oracle.rejected) == 1


def test_the_input_positions_of_the_mark_topics_are_no_dead_letters():
    """The mark topics hold positions without a source, and the check of rejected records ignores them."""

    def position(orders: Log, conflated: Log) -> None:
        for log in (orders, conflated):
            log["mark"] = [entry("position", {"offset": 7})]

    assert failures(position) == []


def test_the_oracle_counts_versions_from_the_first_command_of_a_life():
    """The first version is twice the offset of the first command plus one, and each update counts one on."""
    oracle = PublishOracle("id")
    for place, value in (("t.publish/0/7", b'{"id":"a"}'), ("t.publish/0/9", b'{"n":1}'), ("t.publish/0/12", None)):
        oracle.take(TopicRecord("a", value, {}, place, 0))
        if place.endswith("/9"):
            assert oracle.versions == {"a": 16}
    oracle.take(TopicRecord("a", b'{"id":"a"}', {}, "t.publish/0/20", 0))
    assert oracle.versions == {"a": 41}
