"""Tests of the forecast of a partition's next owners."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.runtime.standby.assignment_forecast import after_death, standby_partitions, successors

PROVED = settings(deadline=None, print_blob=True)
ASSIGNORS = ["cooperative-sticky", "uniform"]
DNY, PI5 = "DnYWwIKfRzqF0o+Ou4wY2g", "pi5xvAj9Q/eorb/8gK+Qqg"  # Member ids as they were on that day.


@st.composite
def groups(draw: st.DrawFn) -> dict[str, frozenset[int]]:
    """Generate members with partitions, as evenly as an assignor leaves them."""
    members = [f"member-{number}" for number in draw(st.sets(st.integers(0, 99), min_size=2, max_size=6))]
    partitions = list(range(draw(st.integers(0, 24))))
    draw(st.randoms(use_true_random=False)).shuffle(partitions)
    return {member: frozenset(partitions[number :: len(members)]) for number, member in enumerate(members)}


def owner_of(assigned: dict[str, frozenset[int]], partition: int) -> str:
    """Return the owner of a partition."""
    [owner] = [member for member, partitions in assigned.items() if partition in partitions]
    return owner


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.integers(0, 8))
def test_each_partition_has_as_many_successors_as_there_can_be(assigned, assignor, length):
    """Successors are distinct members, never the owner, and fewer only if there are not enough members."""
    by_partition = successors(assigned, assignor, length)
    assert by_partition.keys() == frozenset().union(*assigned.values())
    for partition, heirs in by_partition.items():
        assert len(heirs) == len(set(heirs)) == min(length, len(assigned) - 1)
        assert owner_of(assigned, partition) not in heirs


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.integers(1, 4), st.randoms())
def test_the_forecast_does_not_depend_on_the_order_of_members(assigned, assignor, length, random):
    """Every worker computes the same forecast."""
    members = list(assigned)
    random.shuffle(members)
    assert successors({member: assigned[member] for member in members}, assignor, length) == successors(
        assigned, assignor, length
    )


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.data())
def test_after_a_death_the_rest_of_the_chain_stands(assigned, assignor, data):
    """After the owner's death the first successor owns the partition, and the others remain successors."""
    dead = data.draw(st.sampled_from(sorted(assigned)))
    before, left = successors(assigned, assignor, 3), after_death(assigned, [dead], assignor)
    after = successors(left, assignor, 2)
    for partition in assigned[dead]:
        assert owner_of(left, partition) == before[partition][0]
        assert after[partition] == before[partition][1:]


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.data())
def test_a_death_loses_nothing_and_moves_nothing_else(assigned, assignor, data):
    """Survivors keep their partitions, and those of the dead member are shared evenly."""
    dead = data.draw(st.sampled_from(sorted(assigned)))
    left = after_death(assigned, [dead], assignor)
    assert sorted(partition for partitions in left.values() for partition in partitions) == sorted(
        partition for partitions in assigned.values() for partition in partitions
    )
    sizes = [len(partitions) for partitions in left.values()]
    assert max(sizes) - min(sizes) <= 1
    for member, partitions in left.items():
        assert assigned[member] <= partitions


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.integers(1, 4), st.booleans())
def test_standby_partitions_are_those_of_the_successors(assigned, assignor, length, together):
    """All members together keep as many standbys of a partition as it has successors."""
    hosts = {member: "one" if together else member for member in assigned}
    kept = [
        partition for member in assigned for partition in standby_partitions(assigned, assignor, member, length, hosts)
    ]
    told = [partition for partition, chain in successors(assigned, assignor, length).items() for _ in chain]
    assert sorted(kept) == sorted(told)


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.data())
def test_a_partition_has_a_standby_on_another_machine(assigned, assignor, data):
    """Two processes of a machine die together, and a copy on the same disk would be lost, too."""
    dead = data.draw(st.lists(st.sampled_from(sorted(assigned)), min_size=1, max_size=len(assigned) - 1, unique=True))
    hosts = {member: "dead" if member in dead else "alive" for member in assigned}
    left = after_death(assigned, dead, assignor)
    for partition in frozenset().union(*(assigned[member] for member in dead)):
        successor = owner_of(left, partition)
        assert partition in standby_partitions(assigned, assignor, successor, 1, hosts)


@pytest.mark.parametrize(
    ("assignor", "assigned", "dead", "left"),
    [
        (
            "cooperative-sticky",
            {"a": {0, 3, 6}, "b": {1, 4, 7}, "c": {2, 5}},
            "a",
            {"b": {1, 4, 7, 3}, "c": {2, 5, 6, 0}},
        ),
        ("cooperative-sticky", {"a": {0, 1, 2}, "b": set(), "c": set()}, "a", {"b": {0, 2}, "c": {1}}),
        (
            "uniform",
            {"++1x8thSTMavlI3hP7MlKw": {4, 5}, DNY: {6, 7}, PI5: {0, 1}, "6KruLaD+RDywUuiCraf0Ow": {2, 3}},
            "++1x8thSTMavlI3hP7MlKw",
            {DNY: {4, 6, 7}, PI5: {0, 1, 5}, "6KruLaD+RDywUuiCraf0Ow": {2, 3}},
        ),
        (
            "uniform",
            {"uTqfh3p1S6e7hLLCx12WYw": {6, 7}, DNY: {4, 5}, PI5: {0, 1}, "6KruLaD+RDywUuiCraf0Ow": {2, 3}},
            "6KruLaD+RDywUuiCraf0Ow",
            {"uTqfh3p1S6e7hLLCx12WYw": {3, 6, 7}, DNY: {4, 5}, PI5: {0, 1, 2}},
        ),
    ],
    ids=["the highest goes first", "where nobody has any the lowest does", "seen at Kafka 4.3", "and once more"],
)
def test_orphans_go_where_the_assignor_puts_them(assignor, assigned, dead, left):
    """The forecasts agree with assignments observed on a real broker after a kill."""
    assert after_death(assigned, [dead], assignor) == left
