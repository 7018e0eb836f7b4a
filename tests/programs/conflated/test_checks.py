"""Each check finds its faults, and no check complains of correct evidence."""

from __future__ import annotations

import functools
import json
import pickle
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.programs.conflated import checks, faultless
from tests.programs.conflated.account import Account, Bounds
from tests.programs.conflated.evidence import Evidence
from tests.programs.faults.examine import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.programs.conflated.evidence import Delivery

_INTERVAL_MS = 500


@functools.cache
def _faultless() -> Evidence:
    return faultless.evidence(5, 8_000, 100, _INTERVAL_MS)


def _evidence() -> Evidence:
    """Evidence that a test may damage."""
    outputs = ({key: list(of_key) for key, of_key in output.items()} for output in _faultless()[:3])
    return Evidence(*outputs)


def _account(evidence: Evidence, bounds: Bounds) -> Account:
    account = Account(_INTERVAL_MS)
    account.add(evidence)
    account.close(bounds)
    return account


def test_a_conflater_without_fault_has_nothing_wrong() -> None:
    """The model's evidence has no complaints: every update is accounted for, and the delay is that of the model."""
    account = _account(_evidence(), Bounds(p99_ms=26, max_ms=26))
    assert account.complaints.lines() == []
    assert account.updates == 8_000
    assert (account.at(0.5), account.at(1)) == (25, 25)
    assert account.hidden > 10
    assert account.deletes > 10
    assert account.at_once > 0


def _middle(
    deliveries: dict[bytes, list[Delivery]], accept: Callable[[Delivery], bool] = lambda _: True
) -> tuple[list[Delivery], int]:
    """A delivery in the middle of a key's life."""
    for of_key in deliveries.values():
        for place in range(3, len(of_key) - 3):
            if accept(of_key[place]) and not any(
                one.is_delete or one.is_at_once for one in of_key[place - 1 : place + 2]
            ):
                return of_key, place
    raise AssertionError("there is none")


def _change(
    role: str, change: Callable[[Delivery], Delivery], accept: Callable[[Delivery], bool] = lambda _: True
) -> Callable[[Evidence], None]:
    def changed(evidence: Evidence) -> None:
        of_key, place = _middle(getattr(evidence, role), accept)
        of_key[place] = change(of_key[place])

    return changed


def _headers(**changes: str) -> Callable[[Delivery], Delivery]:
    return lambda delivery: delivery._replace(headers={**delivery.headers, **changes})


def _without(name: str) -> Callable[[Delivery], Delivery]:
    return lambda delivery: delivery._replace(
        headers={header: text for header, text in delivery.headers.items() if header != name}
    )


def _drop(*roles: str) -> Callable[[Evidence], None]:
    def drop(evidence: Evidence) -> None:
        _, place = _middle(evidence.sow)
        key = next(key for key, of_key in evidence.sow.items() if of_key is _middle(evidence.sow)[0])
        for role in roles:
            del getattr(evidence, role)[key][place]

    return drop


def _repeat(*roles: str) -> Callable[[Evidence], None]:
    """Repeat a delivery an interval later, and shift all later ones."""

    def repeat(evidence: Evidence) -> None:
        place = _middle(evidence.sow)[1]
        key = next(key for key, of_key in evidence.sow.items() if of_key is _middle(evidence.sow)[0])
        for role in roles:
            of_key = getattr(evidence, role)[key]
            later = [one._replace(timestamp_ms=one.timestamp_ms + _INTERVAL_MS) for one in of_key[place:]]
            of_key[place + 1 :] = later

    return repeat


def _end_early(evidence: Evidence) -> None:
    """Remove the last state of a key."""
    key = next(key for key, of_key in evidence.sow.items() if not of_key[-1].is_delete)
    del evidence.sow[key][-1], evidence.delta[key][-1]


def _bring_back(evidence: Evidence) -> None:
    """Replace the delete of a key by a record, so that the key remains."""
    key = next(key for key, of_key in evidence.sow.items() if any(one.is_delete for one in of_key))
    place = next(place for place, one in enumerate(evidence.sow[key]) if one.is_delete)
    for output in (evidence.sow, evidence.delta):
        del output[key][place + 1 :]
        output[key][place] = output[key][place]._replace(value=b'{"id":1}')


def _late(evidence: Evidence) -> None:
    of_key, place = _middle(evidence.sow)
    of_key[place] = of_key[place]._replace(arrived_ms=(of_key[place].arrived_ms or 0) + 1_000)


def _two_in_one_interval(evidence: Evidence) -> None:
    of_key, place = _middle(evidence.delta)
    of_key[place] = of_key[place]._replace(timestamp_ms=of_key[place - 1].timestamp_ms + _INTERVAL_MS - 1)


def _forget_what_came_back(evidence: Evidence) -> None:
    """Remove a value that changed and returned from a delta, as a conflater would that compares only both ends."""
    for key, deliveries in evidence.delta.items():
        for place, (before, after) in enumerate(pairwise(evidence.sow[key]), 1):
            if before.value is None or after.value is None:
                continue
            ends = json.loads(before.value), json.loads(after.value)
            delta = json.loads(deliveries[place].value or b"")
            if "state" in delta and ends[0]["state"] == ends[1]["state"]:
                del delta["state"]
                deliveries[place] = deliveries[place]._replace(value=json.dumps(delta).encode())
                return
    raise AssertionError("nothing came back")


def _has_gone(delivery: Delivery) -> bool:
    return "removed" in delivery.headers


_FAULTS: dict[str, tuple[Callable[[Evidence], None], Callable[[Evidence, int, Complaints], None], str]] = {
    "a key changes twice in an interval": (_two_in_one_interval, checks.at_most_once_per_interval, "too often"),
    "the last state does not arrive": (_end_early, checks.final_states, "another end"),
    "a deleted key stays": (_bring_back, checks.final_states, "another end"),
    "a delta is lost": (_drop("delta"), checks.delta_replay, "one output alone"),
    "a delivery is lost": (_drop("sow", "delta"), checks.delta_replay, "a broken chain"),
    "a delta for another version": (
        _change("delta", _headers(delta_base="77777")),
        checks.delta_replay,
        "a broken chain",
    ),
    "a delta of another value": (
        _change(
            "delta", lambda one: one._replace(value=json.dumps({**json.loads(one.value or b""), "px": 1}).encode())
        ),
        checks.delta_replay,
        "replay is another record",
    ),
    "a removal that is not told": (
        _change("delta", _without("removed"), _has_gone),
        checks.delta_replay,
        "replay is another record",
    ),
    "a value that came back is not told": (
        _forget_what_came_back,
        checks.touched_paths_told,
        "touched and not told",
    ),
    "a delivery told again": (_repeat("sow", "delta"), checks.nothing_twice, "delivered again"),
    "a delta told again": (_repeat("delta"), checks.nothing_twice, "delivered again"),
    "a record of no update": (
        _change("sow", lambda one: one._replace(value=b'{"id":0}')),
        checks.states_that_were,
        "a state that never was",
    ),
    "a version of no update": (
        _change("sow", _headers(version="77777")),
        checks.states_that_were,
        "a state that never was",
    ),
    "an insert of what is there": (
        _change("sow", _headers(kind="insert")),
        checks.states_that_were,
        "a state that never was",
    ),
    "an update not counted": (
        _change("sow", lambda one: _headers(conflated=str(one.folded - 1))(one), lambda one: one.folded > 2),
        checks.every_update_counted,
        "in no delivery",
    ),
    "an update counted twice": (
        _change("sow", lambda one: _headers(conflated=str(one.folded + 1))(one)),
        checks.every_update_counted,
        "miscounted",
    ),
    "an interval that begins at another time": (
        _change("sow", lambda one: _headers(first_timestamp=str(one.first_ms - 1))(one)),
        checks.every_update_counted,
        "misdated",
    ),
    "a last update that nobody hears of": (_end_early, checks.every_update_counted, "in no delivery"),
    "a record that never came by": (
        _change("sow", lambda one: one._replace(arrived_ms=None)),
        checks.all_came_by,
        "seen otherwise",
    ),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_is_reported_by_its_check(fault: str) -> None:
    """A fault is reported by its check, and by the account."""
    harm, check, kind = _FAULTS[fault]
    evidence, complaints = _evidence(), Complaints()
    harm(evidence)
    check(evidence, _INTERVAL_MS, complaints)
    assert kind in complaints.counts
    assert kind in _account(evidence, Bounds()).complaints.counts


def test_a_successor_may_count_updates_of_a_deleted_key_again() -> None:
    """A successor may count updates of a deleted key again, but not without a kill, nor for a live key."""
    evidence = _evidence()
    key, place = next(
        (key, place)
        for key, of_key in evidence.sow.items()
        for place, one in enumerate(of_key)
        if place > 0 and one.headers.get("kind") == "insert"
    )
    delivery = evidence.sow[key][place]
    offsets = [update.offset for update in evidence.updates[key]]
    first = evidence.updates[key][offsets.index(delivery.source) - delivery.folded]
    assert first.value is None
    again = {"conflated": str(delivery.folded + 1), "first_timestamp": str(first.timestamp_ms)}
    evidence.sow[key][place] = _headers(**again)(delivery)
    assert list(_account(evidence, Bounds()).complaints.counts) == ["miscounted"]
    evidence = evidence._replace(is_disturbed=True)
    assert _account(evidence, Bounds()).complaints.lines() == []
    of_key, place = _middle(evidence.sow)
    of_key[place] = _headers(conflated=str(of_key[place].folded + 1))(of_key[place])
    assert list(_account(evidence, Bounds()).complaints.counts) == ["miscounted"]


def test_accounts_of_partitions_add_up_to_the_account_of_all() -> None:
    """The accounts of partitions, added up, have the figures and complaints of an account of all partitions."""
    evidences = [_evidence(), faultless.evidence(8, 3_000, 40, _INTERVAL_MS)]
    for evidence in evidences:
        _end_early(evidence)
    together, apart = Account(_INTERVAL_MS), Account(_INTERVAL_MS)
    for evidence in evidences:
        together.add(evidence)
        alone = Account(_INTERVAL_MS)
        alone.add(evidence)
        apart.include(pickle.loads(pickle.dumps(alone)))  # As it arrives from another process.
    assert apart == together
    assert apart.complaints.counts["another end"] == 2
    assert min(apart.updates, apart.keys, apart.deliveries, apart.hidden, apart.at_once, apart.deletes) > 0


def test_every_check_has_a_fault_that_it_reports() -> None:
    """Every check has a fault that it reports: a check that was never seen to fail proves nothing."""
    assert {check for _, check, _ in _FAULTS.values()} == set(checks.CHECKS)


def test_records_that_are_gone_after_the_run_are_reported() -> None:
    """Records that are gone after the run are a complaint: otherwise compaction could hide errors."""
    assert "seen otherwise" in _account(_evidence()._replace(is_complete=False), Bounds()).complaints.counts


@pytest.mark.parametrize(
    ("bounds", "is_kept"),
    [
        (Bounds(max_ms=1_025), False),
        (Bounds(max_ms=1_026), True),
        (Bounds(p99_ms=25), False),
        (Bounds(p99_ms=26), True),
    ],
)
def test_lateness_is_held_to_its_bounds(bounds: Bounds, is_kept: bool) -> None:
    """A delivery that is a second late exceeds the limit for all deliveries, but not the one for 99 of 100."""
    evidence = _evidence()
    _late(evidence)
    assert ("too late" not in _account(evidence, bounds).complaints.counts) is is_kept


def test_a_requested_delivery_may_follow_within_an_interval() -> None:
    """A delivery within the interval of another one is a complaint, unless its publisher requested it at once."""
    evidence = _evidence()
    nearest_ms = min(
        after.timestamp_ms - before.timestamp_ms
        for of_key in evidence.sow.values()
        for before, after in pairwise(of_key)
    )
    assert nearest_ms < _INTERVAL_MS
    for of_key in evidence.sow.values():
        of_key[:] = [_without("no_conflate")(one) for one in of_key]
    complaints = Complaints()
    checks.at_most_once_per_interval(evidence, _INTERVAL_MS, complaints)
    assert complaints.counts == {"too often": sum(_near(of_key) for of_key in evidence.sow.values())}


def _near(of_key: list[Delivery]) -> int:
    return sum(b.timestamp_ms - a.timestamp_ms < _INTERVAL_MS for a, b in pairwise(of_key))


def test_a_run_in_which_nothing_happened_proves_nothing() -> None:
    """A run in which no update was folded, delivered at once or deleted is a complaint."""
    evidence = faultless.evidence(5, 50, 50, _INTERVAL_MS)
    assert "proves nothing" in _account(evidence, Bounds()).complaints.counts
