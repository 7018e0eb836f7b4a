"""The conflated topic and a naive model of it, delivery for delivery, without failures."""

import itertools
import json
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from processor.merge import diff
from processor.values.pointer import names
from tests.builtin.conflate.underlying import INTERVAL_MS, Underlying
from tests.builtin.merging import told

VALUES = st.sampled_from([None, True, 1, 1.0, "", [1], {}, {"x": 1}, {"x": 2, "y": [1]}, {"y": {"z": 1}}])
BODIES = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3)
UPDATES = st.tuples(st.sampled_from(["1", "2", "3"]), BODIES | BODIES | st.none(), st.sampled_from([{}] * 5 + [True]))
TURNS = st.lists(st.tuples(st.lists(UPDATES, max_size=4), st.sampled_from([0, 1, 250, 500, 999, 1000, 2500])))


@dataclass
class Key:
    """One key, as the specification speaks of it."""

    delivered: dict | None = None
    interval: list = field(default_factory=list)
    """Its updates of the interval that runs: time, body, version."""

    def deliver(self):
        """Return the delivery at the end of an interval, as the model has it; None: none."""
        updates, self.interval = self.interval, []
        before, self.delivered = self.delivered, updates[-1][1]
        final = self.delivered
        if final is None and before is None:
            return None
        said = {"version": updates[-1][2], "first_timestamp": updates[0][0], "conflated": len(updates)}
        if final is None:
            return {**said, "kind": "delete", "delta": {"id"}, "removed": []}
        if before is None:
            return {**said, "kind": "insert", "delta": set(leaves(final)), "removed": []}
        states = [before, *[body for _, body, _ in updates]]
        moved = set().union(*[changed(*pair) for pair in [*itertools.pairwise(states), (before, final)]])
        delta = {path for path in leaves(final) if touched(path, moved)} | {"id"}
        return {**said, "kind": None, "delta": delta, "removed": sorted(diff(before, final).removed)}


def leaves(record, path=""):
    """The paths in a record that are no object with members, written with dots."""
    found = []
    for name, value in record.items():
        place = f"{path}{name}"
        found += leaves(value, f"{place}.") if isinstance(value, dict) and value else [place]
    return found


def changed(before, after):
    """The paths that a step from one state to the next touched: set, changed or gone."""
    if before is None or after is None:
        return set(before or after)  # With all that is in it.
    change = diff(before, after)
    return {*leaves(change.delta), *[".".join(names(pointer)) for pointer in change.removed]}


def touched(path, moved):
    """Return whether a path or something it lies in was touched."""
    return any(path == place or path.startswith(f"{place}.") for place in moved)


def model(turns, start_ms):
    """Return every delivery of a run: time, key and content."""
    keys, versions, ended, now_ms, out = {}, {}, {}, start_ms, []

    def end(name):
        if (said := keys[name].deliver()) is not None:
            out.append((now_ms, name, said))

    for updates, ms in turns:
        for name, body, at_once in updates:
            if body is None and name not in versions:
                continue
            version = versions[name] = versions.get(name, ended.get(name, 0)) + 1
            if body is None:
                ended[name] = versions.pop(name)
            key = keys.setdefault(name, Key())
            key.interval.append((now_ms, None if body is None else {"id": name, **body}, version))
            if at_once:
                end(name)
        now_ms += ms
        due = [name for name, key in keys.items() if key.interval and key.interval[0][0] + INTERVAL_MS <= now_ms]
        for name in sorted(due, key=lambda name: keys[name].interval[0][0]):
            end(name)
    return out


def life(turns):
    """The same of the processor: one update after the other, so that each has its place."""
    orders = Underlying()
    start_ms = orders.driver.now_ms
    for updates, ms in turns:
        for name, body, at_once in updates:
            if body is not None or name in orders.versions:
                marks = {"no_conflate": "true"} if at_once else {}
                orders.update(name, None if body is None else {"id": name, **body}, **marks)
        orders.driver.advance_time(ms)
    out = []
    for record in orders.driver.pending_output("delta"):
        headers = told(record)
        said = {
            "version": int(headers["version"]),
            "first_timestamp": int(headers["first_timestamp"]),
            "conflated": int(headers.get("conflated", 1)),
            "kind": headers.get("kind"),
            "delta": set(leaves(json.loads(record.value))),
            "removed": sorted(json.loads(headers.get("removed", "[]"))),
        }
        out.append((record.timestamp_ms, record.key.decode(), said))
    return out, start_ms


def by_key(deliveries):
    """In order for each key: keys due at the same moment have no order among them."""
    return sorted(deliveries, key=lambda delivery: delivery[1])


@settings(max_examples=200, deadline=None, print_blob=True)
@given(TURNS)
def test_every_delivery_is_the_models(turns):
    """Time, key, version, number of updates, first time, kind and paths of every delivery are the model's."""
    came, start_ms = life(turns)
    assert by_key(came) == by_key(model(turns, start_ms))
