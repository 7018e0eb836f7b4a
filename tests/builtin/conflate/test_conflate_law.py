"""Conflated topics under random histories: their deltas add up through calamities, and equal a naive model."""

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from processor.merge import diff
from processor.values.pointer import names
from tests.builtin.conflate.underlying import INTERVAL_MS, Underlying
from tests.builtin.merging import seen, told, written
from tests.endtoend.oracle import last_per_key, replay

KEYS = st.sampled_from(["1", "2"])
VALUES = st.sampled_from([None, True, 1, 1.0, "", {}, {"x": 1}, {"x": 2, "y": [1]}])
BODIES = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3)
MARKS = st.sampled_from([{}, {}, {}, {"no_conflate": "true"}])
UPDATES = st.tuples(KEYS, BODIES, MARKS)
CHANGES = st.tuples(KEYS, BODIES | st.none(), MARKS)
CLOCK = st.sampled_from([0, 1, 250, 500, INTERVAL_MS, 3 * INTERVAL_MS])
CALAMITY = st.tuples(
    st.sampled_from(["abort", "crash", "crash, disk kept"]),
    # What is read again comes at once; or so many records, and the rest after a while.
    st.none() | st.tuples(st.integers(0, 5), CLOCK),
)


def steps(changes):
    """Turns of a worker's loop: the records, the time they take, and the event at the end."""
    ends = st.sampled_from([None, None, "commit", "commit", "write"]) | CALAMITY
    return st.lists(st.tuples(st.lists(changes, max_size=4), CLOCK, ends), max_size=12)


def live(orders, life):
    """Take the turns, then let all be delivered; the law is checked on the way. Yields the end of each turn."""
    driver = orders.driver
    for changes, ms, end in [*life, ([], INTERVAL_MS, "commit")]:
        # A delete of nothing is not on a SOW topic.
        driver.pipe_batch(
            [
                orders.record(key, None if body is None else {"id": key, **body}, **mark)
                for key, body, mark in changes
                if body is not None or key in orders.versions
            ]
        )
        driver.advance_time(ms)
        if end == "commit":
            driver.commit()
        elif end == "write":
            driver.write()
        elif end is not None:
            strike(driver, *end)
        assert written(replay(seen(driver.read_output("delta")))) == written(
            last_per_key(seen(driver.read_output("sow")))
        )
        yield end


def strike(driver, calamity, slowly):
    """Roll back or crash, and go on."""
    if calamity == "abort":
        driver.abort(feed=slowly is None)
    else:
        driver.crash(keep_store=calamity != "crash", feed=slowly is None)
    if slowly is not None:
        records, ms = slowly
        driver.feed(records)
        driver.advance_time(ms)
        driver.feed()


def check(orders):
    """The end is right, and on the way to it no key changed more often than it may."""
    driver = orders.driver
    sow = driver.read_output("sow")
    assert written(last_per_key(seen(sow))) == written(last_per_key(seen(driver.input)))
    assert driver.committed_offset == len(driver.input)
    last_ms: dict[bytes | None, int] = {}
    for record in sow:
        if "no_conflate" not in told(record):
            assert record.timestamp_ms - last_ms.get(record.key, 0) >= INTERVAL_MS
        last_ms[record.key] = record.timestamp_ms


def sources(records):
    """For each key the offsets of the underlying topic that its deliveries come from."""
    offsets = defaultdict(list)
    for record in records:
        offsets[record.key].append(int(told(record)["source"].rpartition("/")[2]))
    return offsets


@settings(max_examples=120, deadline=None, print_blob=True)
@given(steps(CHANGES))
def test_the_last_state_always_arrives_and_keys_change_once_an_interval(life):
    """Also across rollbacks and crashes; replayed deltas equal the conflated SOW at every step.

    Nothing is delivered twice: each delivery of a key comes from a later record of the underlying topic than the one
    before, deletes too.
    """
    orders = Underlying()
    for _ in live(orders, life):
        pass
    check(orders)
    for offsets in sources(orders.driver.read_output("sow")).values():
        assert offsets == sorted(set(offsets))


@settings(max_examples=120, deadline=None, print_blob=True)
@given(steps(UPDATES))
def test_no_update_waits_longer_than_an_interval(life):
    """After each turn nothing is left that came, or was read again, an interval ago or earlier."""
    orders = Underlying()
    driver, again_ms = orders.driver, 0
    for end in live(orders, life):
        if isinstance(end, tuple):
            again_ms = driver.now_ms
        delivered = sources([*driver.read_output("sow"), *driver.pending_output("sow")])
        waiting = [record for record in driver.input if record.offset > max(delivered[record.key], default=-1)]
        assert all(driver.now_ms < max(record.timestamp_ms, again_ms) + INTERVAL_MS for record in waiting)


MODEL_VALUES = st.sampled_from([None, True, 1, 1.0, "", [1], {}, {"x": 1}, {"x": 2, "y": [1]}, {"y": {"z": 1}}])
MODEL_BODIES = st.dictionaries(st.sampled_from(["a", "b", "c"]), MODEL_VALUES, max_size=3)
MODEL_UPDATES = st.tuples(
    st.sampled_from(["1", "2", "3"]), MODEL_BODIES | MODEL_BODIES | st.none(), st.sampled_from([{}] * 5 + [True])
)
TURNS = st.lists(st.tuples(st.lists(MODEL_UPDATES, max_size=4), st.sampled_from([0, 1, 250, 500, 999, 1000, 2500])))


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


@settings(max_examples=120, deadline=None, print_blob=True)
@given(TURNS)
def test_every_delivery_is_the_models(turns):
    """Time, key, version, number of updates, first time, kind and paths of every delivery are the model's."""
    came, start_ms = life(turns)
    assert by_key(came) == by_key(model(turns, start_ms))
