"""Locks by `expect_version=0` and `expiration`, held by many clients that often pause for longer than their lease."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from processor.client import Client
from processor.errors import VersionConflict
from tests.endtoend.world import World
from tests.programs.lives.checks import repeated_versions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.endtoend.oracle import Seen

LEASE_S = 1.0
_LONG_LEASE_S = 60.0  # For a lock that is released in time, however busy the machine is.
_PATIENCE_S = 120


class Locked(NamedTuple):
    """The result of a run."""

    taken: int
    released: int
    refused: int
    """Releases that came after the end of the lease."""
    wrong: list[str]


def run_locks(
    bootstrap: str, directory: Path, name: str, *, clients: int, rounds: int, locks: int, seed: int
) -> Locked:
    """Have clients take and release locks while a worker is killed; returns the locks of others that were touched."""
    world = World(bootstrap, directory, name)
    outcomes: list[str] = []
    versions: dict[str, int] = {}
    try:
        world.start()
        world.start()
        threads = [
            threading.Thread(target=_hold, args=(world, f"c{number}", rounds, locks, seed, outcomes, versions))
            for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        world.workers[0].kill()
        world.start()
        for thread in threads:
            thread.join()
        world.settle()
        deltas = world.read("delta")
    finally:
        world.close()
    counts = {outcome: outcomes.count(outcome) for outcome in ("taken", "released", "refused", "failed")}
    wrong = repeated_versions(deltas) + touched(deltas) + ["a client failed"] * counts["failed"]
    return Locked(counts["taken"], counts["released"], counts["refused"], wrong)


def _hold(
    world: World, who: str, rounds: int, locks: int, seed: int, outcomes: list[str], versions: dict[str, int]
) -> None:
    """Take a lock, pause within the lease or for longer, and release it with the version that it had.

    A client whose lease was over before it has read its lock releases it with `versions`, the one that was seen last.
    """
    rng, pause = random.Random(f"{seed}/{who}"), threading.Event()
    outcome = "failed"
    try:
        with Client(who, world.config) as client:
            for _ in range(rounds):
                key = f"l{rng.randrange(locks)}"
                lock: dict[str, Any] = {"id": key, "owner": who}
                is_short = rng.random() < 0.5
                with contextlib.suppress(VersionConflict):
                    taken = client.publish(
                        world.name, lock, expect_version=0, expiration=LEASE_S if is_short else _LONG_LEASE_S
                    )
                    assert taken is not None
                    taken.result(_PATIENCE_S)
                    outcomes.append("taken")
                    held = client.get(world.name, key)
                    if held is not None and held.data["owner"] == who:
                        version = versions[key] = held.version
                    elif (version := versions.get(key, 0)) == 0:
                        continue  # The lease was over before the record was read; a version of before does as well.
                    if is_short:
                        pause.wait(rng.choice([0, LEASE_S / 2, LEASE_S, 2 * LEASE_S]))
                    outcome = "refused"
                    release = client.sow_delete(
                        world.name, key=key, expect_version=version, headers={"by": who}, ack="processed"
                    )
                    assert release is not None
                    release.result(_PATIENCE_S)
                    outcome = "released"
                if outcome in ("refused", "released"):
                    outcomes.append(outcome)
                outcome = "failed"
        outcome = "done"
    finally:
        outcomes.append(outcome)


def touched(deltas: list[Seen]) -> list[str]:
    """Name the locks that another client than their owner has released."""
    owners: dict[bytes | None, str] = {}
    wrong = []
    for delta in deltas:
        kind = delta.headers.get("kind")
        if kind == "insert":
            owners[delta.key] = json.loads(delta.value or b"")["owner"]
        elif kind == "delete" and delta.headers.get("by") != owners.get(delta.key):
            wrong.append(f"{delta.key!r} of {owners.get(delta.key)} was released by {delta.headers.get('by')}")
    return wrong
