"""Who sees conflated topics only: readers who join late, ours and Kafka's own; and copies of what is no topic."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from tests.endtoend.copies import INTERVAL_MS, Copies
from tests.endtoend.oracle import applied, fold, last_per_key, remove, replay
from tests.endtoend.test_console_consumer import console
from tests.endtoend.world import random_commands
from tests.hosting.packages import EXAMPLE, install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.endtoend.oracle import Seen

pytestmark = pytest.mark.broker

CALM_MS = 600


@pytest.fixture(scope="module")
def copies(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    """A copy, a copy of it, the topic of a third party's processor, and a copy of that; all at work."""
    directory = tmp_path_factory.mktemp("copies")
    with pytest.MonkeyPatch.context() as patch:
        site = directory / "site-packages"
        shutil.copytree(EXAMPLE / "example_plugin", site / "example_plugin")
        install(site, "example_plugin", {"large": "example_plugin.large:Large"})
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", str(site))
        made = Copies(
            bootstrap,
            directory,
            conflated={
                "calm": {"underlying": "slow", "interval": f"{CALM_MS}ms"},
                "large_slow": {"underlying": "large", "interval": f"{INTERVAL_MS}ms"},
            },
            processors={"large": {"use": "large", "settings": {"field": "n", "at_least": 5}}},
        )
        try:
            made.work()
            yield made
        finally:
            made.close()


def arrived(copies: Copies, name: str) -> bool:
    """Whether a copy has the last state of every key."""
    return last_per_key(copies.read("sow", name)) == fold(copies.read("publish"))


def test_a_copy_of_a_copy_calms_further(copies: Copies, unique: str) -> None:
    """Each level tells how many updates of the one under it were folded, all of them, and adds up to its last state."""
    levels = [copies.name, copies.conflated, f"{copies.name}_calm"]
    numbers = itertools.count()

    def calmed() -> bool:
        copies.at_once(*((unique, {"id": unique, "n": next(numbers)}, {}) for _ in range(3)))
        *_, slow, calm = (len(copies.of(unique, "sow", level)) for level in levels)
        return slow > calm >= 3

    copies.wait(calmed, "three deliveries of the copy of the copy")
    last = {"id": unique, "n": next(numbers) - 1}
    copies.wait(lambda: last_per_key(copies.of(unique, "sow", levels[-1])) == {unique: last}, "the last state")

    told = {level: copies.of(unique, "sow", level) for level in levels}
    for under, over in itertools.pairwise(levels):
        assert sum(int(record.headers.get("conflated", "1")) for record in told[over]) == len(told[under])
        assert len(told[over]) < len(told[under])
        assert replay(copies.of(unique, "delta", over)) == {unique: last}
    assert {records[-1].headers["version"] for records in told.values()} == {str(last["n"] + 1)}
    check_rate(told[levels[1]], INTERVAL_MS)
    check_rate(told[levels[2]], CALM_MS)


def check_rate(deliveries: list[Seen], interval_ms: int) -> None:
    """A key is delivered once per interval; half a one more is for a record that Kafka's client stamped late."""
    for (first, at), (last, then) in itertools.combinations(enumerate(deliveries), 2):
        passed_ms = then.timestamp_ms - at.timestamp_ms
        assert (last - first - 0.5) * interval_ms <= passed_ms, f"{last - first + 1} deliveries in {passed_ms} ms"


def test_a_reader_who_joins_late_has_the_state_of_the_underlying(copies: Copies) -> None:
    """A client's snapshot of the copy and the deltas after it, or a later snapshot alone: the same world."""
    copies.publish(random_commands(81, 1_000, 30))
    copies.wait(lambda: arrived(copies, copies.conflated), "the first states")
    have: dict[str | None, Any] = {}
    told: dict[str, int] = defaultdict(int)
    with Client("late", copies.config) as client:
        expected: Any = None  # Not known before the second half.
        for message in client.sow_and_delta_subscribe(copies.conflated, options="oof", timeout_s=30):
            told[message.command] += 1
            if message.command == "group_end":
                assert have == fold(copies.read("publish"))
                copies.publish(random_commands(82, 1_000, 30))
                expected = fold(copies.read("publish"))
            elif message.command == "oof":
                del have[message.sow_key]
            elif message.command != "group_begin":
                have[message.sow_key] = applied(have[message.sow_key], message.data) if message.delta else message.data
                for pointer in message.removed:
                    remove(have[message.sow_key], pointer)
            if have == expected:
                break
        assert have == expected
        snapshot = [message for message in client.sow(copies.conflated) if message.command == "sow"]
        assert {message.sow_key: message.data for message in snapshot} == expected
    assert told["sow"] > 0
    assert told["publish"] > 0


@pytest.mark.long
def test_kafkas_own_console_consumer_reads_the_same_world_from_a_copy(copies: Copies) -> None:
    """Others' code: the SOW topic of the copy, then the deltas after it; or all deltas alone."""
    copies.publish(random_commands(83, 1_000, 30))
    copies.wait(lambda: arrived(copies, copies.conflated), "the first states")
    sow = console(copies, "sow", copies.conflated)
    assert last_per_key(sow) == fold(copies.read("publish"))
    copies.publish(random_commands(84, 1_000, 30))
    copies.wait(lambda: arrived(copies, copies.conflated), "the last states")
    delta = console(copies, "delta", copies.conflated)
    assert joined(sow, delta) == replay(delta) == fold(copies.read("publish"))


def joined(sow: list[Seen], delta: list[Seen]) -> dict[str, Any]:
    """What somebody has who read a SOW topic and then a delta topic: `source` says which deltas are in it already."""
    world = last_per_key(sow)
    known = {record.key: source_offset(record) for record in sow}
    for record in delta:
        if source_offset(record) <= known.get(record.key, -1):
            continue
        assert record.key is not None
        key = record.key.decode()
        if record.headers.get("kind") == "delete":
            del world[key]
            continue
        world[key] = applied(world.get(key, {}), json.loads(record.value or b""))
        for pointer in json.loads(record.headers.get("removed", "[]")):
            remove(world[key], pointer)
    return world


def source_offset(record: Seen) -> int:
    """Which update of the underlying topic a delivery has come to."""
    return int(record.headers["source"].rpartition("/")[2])


def test_what_somebody_elses_processor_writes_can_be_conflated(copies: Copies) -> None:
    """Its versions, its deletes; it writes no deltas, its copy does."""
    rng = random.Random(85)
    copies.publish(
        [(b"L%d" % n, {"id": f"L{n}", "n": rng.randrange(10)}, {}) for n in (rng.randrange(20) for _ in range(500))]
    )
    over, under = f"{copies.name}_large_slow", f"{copies.name}_large"

    def large() -> dict[str, Any]:
        return {key: body for key, body in fold(copies.read("publish")).items() if body.get("n", 0) >= 5}

    copies.wait(lambda: last_per_key(copies.read("sow", over)) == large(), "the last states")
    assert len(copies.read("sow", over)) < len(copies.read("sow", under)) / 2
    assert replay(copies.read("delta", over)) == large()


def test_a_record_that_leaves_a_processors_topic_leaves_the_copy(copies: Copies, unique: str) -> None:
    """At the end of an interval, as it came, with the processor's version."""
    over = f"{copies.name}_large_slow"
    copies.at_once(*((unique, {"id": unique, "n": n}, {}) for n in (1, 9, 2, 5, 7)))
    copies.told(unique, 1, over)
    copies.at_once((unique, {"id": unique, "n": 2}, {}))
    sow, delta = copies.told(unique, 2, over)
    assert [record.value for record in sow] == [b'{"id":"%b","n":7}' % unique.encode(), None]
    assert [record.headers.get("kind") for record in delta] == ["insert", "delete"]
    assert [record.headers["version"] for record in sow] == [
        record.headers["version"] for record in copies.of(unique, "sow", f"{copies.name}_large")[-2:]
    ]
