"""The promises of a conflated topic, each checked against the evidence of a run (spec conflation.md)."""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, Final

from tests.endtoend.oracle import applied, remove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.programs.conflated.evidence import Delivery, Evidence
    from tests.programs.faults.examine import Complaints


def at_most_once_per_interval(evidence: Evidence, interval_ms: int, complaints: Complaints) -> None:
    """Two deliveries of a key are at least an interval apart, unless the later one's publisher requested otherwise.

    After an immediate delivery, an interval begins with the next update, which may belong to the same batch of input:
    the immediate delivery is sent at the end of the batch, and the interval lasts its full time all the same.
    """
    for name, key, deliveries in _outputs(evidence):
        for before, after in pairwise(deliveries):
            spacing_ms = after.timestamp_ms - (after.first_ms if before.is_at_once else before.timestamp_ms)
            if spacing_ms < interval_ms and not after.is_at_once:
                complaints.add("too often", f"{name} {_describe(key, after)}, {spacing_ms} ms after the one before")


def final_states(evidence: Evidence, interval_ms: int, complaints: Complaints) -> None:
    """At the end, the copy has the same records as the underlying topic, and no deleted ones."""
    wanted = {key: updates[-1].value for key, updates in evidence.updates.items()}
    actual = {key: deliveries[-1].value for key, deliveries in evidence.sow.items()}
    for key in wanted.keys() | actual.keys():
        if wanted.get(key) != actual.get(key):
            complaints.add("another end", f"key {key!r}: {actual.get(key)!r} instead of {wanted.get(key)!r}")


def delta_replay(evidence: Evidence, interval_ms: int, complaints: Complaints) -> None:
    """Each delta, applied to its base version, gives the record that the SOW topic has for the same delivery."""
    for key in evidence.sow.keys() | evidence.delta.keys():
        version, record = 0, None
        for sow_delivery, delta in zip_longest(evidence.sow.get(key, ()), evidence.delta.get(key, ())):
            if sow_delivery is None or delta is None or sow_delivery.source != delta.source:
                complaints.add("one output alone", _describe(key, sow_delivery or delta))
                break
            otherwise = 0 if delta.headers.get("kind") == "insert" else int(delta.headers["version"]) - 1
            base = int(delta.headers.get("delta_base", otherwise))
            if base != version:
                complaints.add("a broken chain", f"{_describe(key, delta)} is for version {base} and met {version}")
            version = 0 if delta.is_delete else int(delta.headers["version"])
            try:
                record = None if delta.is_delete else _replayed(record, delta)
            except KeyError as error:
                complaints.add("replay is another record", f"{_describe(key, delta)} takes away {error}")
                break
            if record != (None if sow_delivery.value is None else json.loads(sow_delivery.value)):
                complaints.add("replay is another record", f"{_describe(key, delta)}: {record!r:.200}")
                break


def touched_paths_told(evidence: Evidence, interval_ms: int, complaints: Complaints) -> None:
    """A value that differed during the interval is delivered at its end, even if it has returned to the old value."""
    for key, deliveries in evidence.delta.items():
        updates = evidence.updates.get(key, [])
        places = {update.offset: place for place, update in enumerate(updates)}
        for before, after in pairwise(deliveries):
            first, last = places.get(before.source), places.get(after.source)
            if first is None or last is None or last - first < 2:
                continue
            states = [_leaves(update.value) for update in updates[first : last + 1]]
            if not all(states):
                continue  # A deleted record has no members to compare.
            delivered_paths = _leaves(after.value)
            for path, value in states[-1].items():
                if path not in delivered_paths and any(state.get(path) != value for state in states):
                    complaints.add("touched and not told", f"{path} of {_describe(key, after)}")


def nothing_twice(evidence: Evidence, interval_ms: int, complaints: Complaints) -> None:
    """Each delivery of a key is newer than the one before, also if the key was deleted in between."""
    for name, key, deliveries in _outputs(evidence):
        for before, after in pairwise(deliveries):
            if after.source <= before.source:
                complaints.add("delivered again", f"{name} {_describe(key, after)} after {before.source}")


def states_that_were(evidence: Evidence, interval_ms: int, complaints: Complaints) -> None:
    """Each delivery has value and version of the underlying record it names; only the first of a life is an insert."""
    for key, deliveries in evidence.sow.items():
        there = {update.offset: update for update in evidence.updates.get(key, ())}
        is_there = False
        for delivery in deliveries:
            update = there.get(delivery.source)
            if (
                update is None
                or (update.value, update.version) != (delivery.value, int(delivery.headers["version"]))
                or delivery.is_delete is not (update.value is None)
                or (delivery.headers.get("kind") == "insert") is is_there
            ):
                complaints.add("a state that never was", f"{_describe(key, delivery)} of {update!r:.200}")
            is_there = not delivery.is_delete


def every_update_counted(evidence: Evidence, interval_ms: int, complaints: Complaints) -> None:
    """Each update is counted and dated by the headers of one delivery, or belongs to a life without deliveries.

    A worker that takes over does not know which updates of a deleted key were already counted, and may count them
    again.
    """
    for key, updates in evidence.updates.items():
        offsets = [update.offset for update in updates]
        begin, is_there = 0, False
        for delivery in evidence.sow.get(key, ()):
            end = bisect_right(offsets, delivery.source)
            first = end - delivery.folded
            may_be_again = evidence.is_disturbed and not is_there
            if first < (0 if may_be_again else begin):
                complaints.add("miscounted", f"{_describe(key, delivery)} of {end - begin} says {delivery.folded}")
            elif begin < first and (is_there or (updates[first - 1].value is not None and not may_be_again)):
                complaints.add("in no delivery", f"key {key!r}: {first - begin} before {_describe(key, delivery)}")
            elif updates[first].timestamp_ms != delivery.first_ms:
                complaints.add("misdated", f"{_describe(key, delivery)} begins with {updates[first]!r:.200}")
            begin, is_there = end, not delivery.is_delete
        if begin < len(updates) and (is_there or updates[-1].value is not None):
            complaints.add("in no delivery", f"key {key!r}: {len(updates) - begin} after all deliveries")


def all_came_by(evidence: Evidence, interval_ms: int, complaints: Complaints) -> None:
    """The reader has seen every record during the run that is in the topics afterwards."""
    unseen = sum(delivery.arrived_ms is None for _, _, deliveries in _outputs(evidence) for delivery in deliveries)
    if unseen or not evidence.is_complete:
        complaints.add("seen otherwise", f"{unseen} records never came by" if unseen else "records are gone")


CHECKS: Final[tuple[Callable[[Evidence, int, Complaints], None], ...]] = (
    at_most_once_per_interval,
    final_states,
    delta_replay,
    touched_paths_told,
    nothing_twice,
    states_that_were,
    every_update_counted,
    all_came_by,
)
"""The checks that hold under any kills; the account checks the delays."""


def lateness_ms(evidence: Evidence, interval_ms: int, warm_up_s: float = 0) -> Iterator[float]:
    """The delay of each delivery after the end of its interval, on both topics, without immediate deliveries.

    Deliveries during the warm-up are left out.
    """
    first_ms = min((updates[0].timestamp_ms for updates in evidence.updates.values()), default=0)
    from_ms = first_ms + warm_up_s * 1000
    for _, _, deliveries in _outputs(evidence):
        for delivery in deliveries:
            is_counted = not delivery.is_at_once and delivery.first_ms >= from_ms
            if delivery.arrived_ms is not None and is_counted:
                yield delivery.arrived_ms - delivery.first_ms - interval_ms


def hidden(evidence: Evidence) -> int:
    """The number of updates in no delivery."""
    updates = sum(map(len, evidence.updates.values()))
    return updates - sum(delivery.folded for deliveries in evidence.sow.values() for delivery in deliveries)


def _outputs(evidence: Evidence) -> Iterator[tuple[str, bytes, list[Delivery]]]:
    for name, output in (("sow", evidence.sow), ("delta", evidence.delta)):
        for key, deliveries in output.items():
            yield name, key, deliveries


def _leaves(value: bytes | None) -> dict[str, Any]:
    """The values of a record that are not objects, by their paths; empty for a deleted record."""
    leaves: dict[str, Any] = {}
    objects = [("", {} if value is None else json.loads(value))]
    for path, members in objects:
        for name, member in members.items():
            if isinstance(member, dict):
                objects.append((f"{path}/{name}", member))
            else:
                leaves[f"{path}/{name}"] = member
    return leaves


def _replayed(record: Any, delta: Delivery) -> Any:
    """The record after a delta."""
    assert delta.value is not None
    new = applied({} if record is None else record, json.loads(delta.value))
    removed = json.loads(delta.headers.get("removed", "[]"))
    if removed:
        new = json.loads(json.dumps(new))  # `applied` shares unchanged objects with the old record.
    for pointer in removed:
        remove(new, pointer)
    return new


def _describe(key: bytes, delivery: Delivery | None) -> str:
    headers: Mapping[str, str] = {} if delivery is None else delivery.headers
    where = "" if delivery is None else f" at offset {delivery.offset}"
    return f"key {key!r}{where} version {headers.get('version')} from {headers.get('source')}"
