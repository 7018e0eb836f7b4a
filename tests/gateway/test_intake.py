"""The intake of a feed: records reach the engine in order, as many in a turn as fit."""

import asyncio
import time

import pytest

from processor.gateway.feeds.intake import PART_MAX, Intake
from processor.subscriptions.request.turn import TURN_S


def test_costly_updates_are_given_in_small_parts():
    """Updates of a millisecond each take several turns, in which others run, and a call comes behind its records."""
    parts, turns = [], []

    async def run():
        def take(partition, records):
            parts.append(records)
            time.sleep(0.001 * len(records))

        done = asyncio.Event()
        intake = Intake(take)
        intake._part_max = 2
        intake.add(0, list(range(50)))
        intake.add(1, list(range(50, 60)))
        intake.add_call(done.set)
        while not done.is_set():
            turns.append(len(parts))
            await asyncio.sleep(0)

    asyncio.run(run())
    assert [record for part in parts for record in part] == list(range(60))
    assert max(map(len, parts)) <= TURN_S * 1000
    assert len(turns) > 3


def test_cheap_updates_are_given_in_large_parts_and_a_failure_ends_nothing():
    """Parts grow up to their limit, and after a call that raised the next records are given."""
    parts = []

    def take(partition, records):
        parts.append(len(records))
        if records == ["bad"]:
            raise ValueError("bad record")

    async def run():
        intake = Intake(take)
        with pytest.raises(ValueError, match="bad record"):
            intake.add(0, ["bad"])
        done = asyncio.Event()
        for _ in range(20):
            intake.add(0, [0] * PART_MAX)
        intake.add_call(done.set)
        await done.wait()

    asyncio.run(run())
    assert sum(parts) == 20 * PART_MAX + 1
    assert max(parts) == PART_MAX


def test_many_small_batches_have_one_turn_in_a_round():
    """However many calls bring records in one round of the event loop, sockets are looked at after a turn of work."""
    calls, rounds = 100, []

    async def run():
        taken = []

        def take(partition, records):
            taken.extend(records)
            time.sleep(0.001)

        loop, done = asyncio.get_running_loop(), asyncio.Event()
        intake = Intake(take)
        for number in range(calls):
            loop.call_soon(intake.add, 0, [number])
        loop.call_soon(intake.add_call, done.set)
        while not done.is_set():
            await asyncio.sleep(0)
            rounds.append(len(taken))
        return taken

    assert asyncio.run(run()) == list(range(calls))
    most = max(after - before for before, after in zip([0, *rounds], rounds, strict=False))
    assert most <= TURN_S * 1000 + 1
