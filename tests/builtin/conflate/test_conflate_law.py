"""The conflated topic under random updates, clocks, rollbacks and crashes."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(max_examples=300, deadline=None, print_blob=True)
@given(steps(CHANGES))
def test_the_last_state_always_arrives_and_keys_change_once_an_interval(life):
    """Also across rollbacks and crashes; replayed deltas equal the conflated SOW at every step."""
    orders = Underlying()
    for _ in live(orders, life):
        pass
    check(orders)


@settings(max_examples=300, deadline=None, print_blob=True)
@given(steps(CHANGES))
def test_nothing_is_delivered_twice(life):
    """Each delivery of a key comes from a later record of the underlying topic than the one before, deletes too."""
    orders = Underlying()
    for _ in live(orders, life):
        pass
    check(orders)
    for offsets in sources(orders.driver.read_output("sow")).values():
        assert offsets == sorted(set(offsets))


@settings(max_examples=300, deadline=None, print_blob=True)
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
