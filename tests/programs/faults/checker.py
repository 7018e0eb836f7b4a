"""The checker: accounts for every input record by the output records that an independent reader reads.

The expected outputs come from `expected.py`, a fold of the input that shares no code with the product; `examine.py`
compares the outputs with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from tests.programs.faults.examine import (
    Complaints,
    OutputExam,
    compare_records,
    compare_sow,
    examine_dlq,
    examine_rekeyed,
    replay,
)
from tests.programs.faults.expected import expect
from tests.programs.faults.open_transactions import open_transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.endtoend.oracle import Seen
    from tests.endtoend.world import World

Guarantee = Literal["exactly_once", "at_least_once"]


class Discrepancy(AssertionError):
    """The outputs differ from the expected ones; the message gives the kinds of differences, and examples."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The account of a run: inputs = updates + rejected + duplicates + nothing + rekeyed."""

    inputs: int
    """Number of input records, including those that a worker sent again with their key."""
    updates: int
    """Number of input records that changed a key, each with one SOW record and one delta."""
    rejected: int
    duplicates: int
    nothing: int
    """Number of deletes of missing records."""
    rekeyed: int
    keys: int
    """Number of records in SOW at the end."""
    repeats: int
    """Number of repeated outputs; 0 unless the guarantee allows them."""

    def __str__(self) -> str:
        summary = (
            f"{self.inputs:,} records: {self.updates:,} updates of now {self.keys:,} keys, {self.rejected:,} rejected, "
            f"{self.duplicates:,} duplicates, {self.nothing:,} deletes of nothing, {self.rekeyed:,} sent again"
        )
        return f"{summary}; {self.repeats:,} outputs told again" if self.repeats else summary


class Evidence(NamedTuple):
    """The records of a family after a run: each topic in order of partition and offset."""

    name: str
    inputs: list[Seen]
    sow: list[Seen]
    delta: list[Seen]
    dlq: list[Seen]


def check(
    world: World,
    *,
    guarantee: Guarantee = "exactly_once",
    name: str | None = None,
    keep: Callable[[Evidence, Figures, list[str]], None] | None = None,
) -> Figures:
    """Account for every input record of a family; call it when all input is processed.

    Args:
        world: the family; its topics have the default policies.
        guarantee: at_least_once allows repeated outputs with the same content.
        name: the family's name, if it is not the world's own.
        keep: called with all records, the account and the complaints, if there are any.

    Raises:
        Discrepancy: the outputs differ from the expected ones.
    """
    wrong = open_transactions(world)
    topics = {role: world.read(role, name) for role in ("publish", "sow", "delta", "dlq")}
    evidence = Evidence(name or world.name, topics["publish"], topics["sow"], topics["delta"], topics["dlq"])
    figures, more = account(evidence, guarantee=guarantee)
    wrong += more
    if keep is not None:
        keep(evidence, figures, wrong)
    if wrong:
        raise Discrepancy("\n".join([f"{evidence.name}: {figures}", *wrong]))
    return figures


def account(
    evidence: Evidence, *, guarantee: Guarantee = "exactly_once", versions_grow: bool = True
) -> tuple[Figures, list[str]]:
    """Account for every input record of evidence that was read before; returns the account and the complaints.

    Args:
        evidence: the records of the topics.
        guarantee: at_least_once allows repeated outputs with the same content.
        versions_grow: False for a history of a release in which each life of a key began at version 1.
    """
    name, inputs, sow, delta, dlq = evidence
    may_repeat = guarantee == "at_least_once"
    expected, complaints = expect(f"{name}.publish", inputs, versions_grow=versions_grow), Complaints()
    exams = {
        role: OutputExam(f"{name}.{role}", expected, complaints, may_repeat=may_repeat) for role in ("sow", "delta")
    }
    compare_records(f"{name}.sow", exams["sow"].run(sow), expected, complaints)
    deltas = exams["delta"].run(delta)
    world = compare_sow(f"{name}.sow", sow, expected, complaints)
    replay(f"{name}.delta", deltas, world, expected, complaints)
    repeats = examine_dlq(f"{name}.dlq", dlq, expected, complaints, may_repeat=may_repeat)
    examine_rekeyed(f"{name}.publish", inputs, expected, complaints, once=not may_repeat)
    figures = Figures(
        inputs=len(inputs),
        updates=sum(map(len, expected.updates.values())),
        rejected=len(expected.rejected),
        duplicates=expected.duplicates,
        nothing=expected.nothing,
        rekeyed=len(expected.rekeyed),
        keys=len(world),
        repeats=repeats + sum(exam.repeats for exam in exams.values()),
    )
    if not figures.updates:
        complaints.add("proves nothing", f"no record of {name} was to be merged")
    return figures, complaints.lines()
