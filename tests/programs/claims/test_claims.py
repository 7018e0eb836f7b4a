"""A short run of claims, and the faults that its checks must find; `make program NAME=claims` runs it at length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.programs.claims.checks import Claim, broken_promises
from tests.programs.claims.run import Plan, run

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = {"k0": ["a", "b"]}
BEGINS = {"k0": 7}
WON = [Claim("k0", "a", "won"), Claim("k0", "b", "lost", 8)]
RECORD = {"k0": (8, {"id": "k0", "owner": "a"})}


def test_a_good_run_has_no_broken_promise():
    """One winner, one loser who got the version, and the winner in the record: nothing is wrong."""
    assert broken_promises(EXPECTED, WON, RECORD, BEGINS) == []


@pytest.mark.parametrize(
    ("claims", "records", "promise"),
    [
        ([Claim("k0", "a", "won"), Claim("k0", "b", "won")], RECORD, "keys without exactly one winner"),
        ([Claim("k0", "a", "lost", 8), Claim("k0", "b", "lost", 8)], RECORD, "keys without exactly one winner"),
        (WON[:1], RECORD, "claims without exactly one outcome"),
        ([*WON, WON[1]], RECORD, "claims without exactly one outcome"),
        ([*WON, Claim("k0", "c", "lost", 8)], RECORD, "outcomes of claims that were not made"),
        ([WON[0], Claim("k0", "b", "lost", 7)], RECORD, "lost claims whose ack has another version than the winner's"),
        ([WON[0], Claim("k0", "b", "AcksMissing")], RECORD, "claims that ended with AcksMissing"),
        (WON, {"k0": (9, {"id": "k0", "owner": "a"})}, "records whose version is not that of one claim"),
        (WON, {"k0": (8, {"id": "k0", "owner": "b"})}, "records with another owner than the winner"),
        (WON, {}, "records with another owner than the winner"),
    ],
)
def test_every_broken_promise_is_found(claims, records, promise):
    """Two winners, none, a lost answer, a wrong version and a wrong owner are each found and named."""
    assert any(promise in line for line in broken_promises(EXPECTED, claims, records, BEGINS))


@pytest.mark.broker
@pytest.mark.long
def test_each_key_is_won_once_while_workers_are_killed(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """Ten clients claim 500 keys, two of them each, while a worker is killed: each key is won exactly once."""
    plan = Plan(seed=23, clients=10, processes=2, keys=500, rivals=2, kills=1, window=3)
    outcome = run(plan, bootstrap, tmp_path, unique, print)
    print(outcome)
    assert outcome.wrong == []
