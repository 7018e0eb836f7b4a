"""Tests of readers who see conflated topics only, and of copies of a processor's topic."""

from __future__ import annotations

import itertools
import random
import shutil
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from tests.endtoend.copies import INTERVAL_MS, Copies
from tests.endtoend.oracle import applied, fold, last_per_key, remove, replay
from tests.endtoend.world import random_commands
from tests.hosting.packages import EXAMPLE, install
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.endtoend.oracle import Seen

pytestmark = pytest.mark.broker

CALM_MS = 600


@pytest.fixture(scope="module")
def copies(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    """Start a copy, a copy of it, a third-party processor's topic, and a copy of that."""
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
    """Return whether a copy has the last state of every key."""
    return last_per_key(copies.read("sow", name)) == fold(copies.read("publish"))


def test_a_copy_of_a_copy_calms_further(copies: Copies, unique: str) -> None:
    """Each level counts the folded updates of the level below, and adds up to its last state."""
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
    """Check that a key is delivered once per interval, of which the first begins with its first update.

    A busy machine may write a delivery late: the time between two of them may be shorter.
    """
    for (first, at), (last, then) in itertools.combinations_with_replacement(enumerate(deliveries), 2):
        passed_ms = then.timestamp_ms - int(at.headers["first_timestamp"])
        assert (last - first + 1) * interval_ms <= passed_ms, f"{last - first + 1} deliveries in {passed_ms} ms"


def test_a_reader_who_joins_late_has_the_state_of_the_underlying(copies: Copies) -> None:
    """A snapshot of the copy with later deltas, and a later snapshot alone, are equal."""
    copies.publish(random_commands(81, 1_000, 30))
    copies.wait(lambda: arrived(copies, copies.conflated), "the first states")
    have: dict[str | None, Any] = {}
    told: dict[str, int] = defaultdict(int)
    with Client("late", copies.config) as client:
        expected: Any = None  # Not known before the second half.
        for message in client.sow_and_delta_subscribe(copies.conflated, options="oof", timeout_s=PATIENCE_S):
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


def test_the_topic_of_a_third_party_processor_can_be_conflated(copies: Copies) -> None:
    """The copy has the versions and deletes of the processor, and deltas, which the processor does not write."""
    rng = random.Random(85)
    copies.at_once(
        *((f"L{n}", {"id": f"L{n}", "n": rng.randrange(10)}, {}) for n in (rng.randrange(20) for _ in range(500)))
    )
    over, under = f"{copies.name}_large_slow", f"{copies.name}_large"

    def large() -> dict[str, Any]:
        return {key: body for key, body in fold(copies.read("publish")).items() if body.get("n", 0) >= 5}

    copies.wait(lambda: last_per_key(copies.read("sow", over)) == large(), "the last states")
    assert len(copies.read("sow", over)) < len(copies.read("sow", under)) / 2
    assert replay(copies.read("delta", over)) == large()


def test_a_record_that_leaves_a_processors_topic_leaves_the_copy(copies: Copies, unique: str) -> None:
    """A delete reaches the copy at the end of an interval, with the processor's version."""
    over = f"{copies.name}_large_slow"
    copies.at_once(*((unique, {"id": unique, "n": n}, {}) for n in (1, 9, 2, 5, 7)))
    copies.deliveries(unique, 1, over)
    copies.at_once((unique, {"id": unique, "n": 2}, {}))
    sow, delta = copies.deliveries(unique, 2, over)
    assert [record.value for record in sow] == [b'{"id":"%b","n":7}' % unique.encode(), None]
    assert [record.headers.get("kind") for record in delta] == ["insert", "delete"]
    assert [record.headers["version"] for record in sow] == [
        record.headers["version"] for record in copies.of(unique, "sow", f"{copies.name}_large")[-2:]
    ]
