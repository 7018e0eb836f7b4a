"""The numbers of publishers on a real broker: refused ones, names for one occasion, jumps, and the mark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from processor.client import Client
from processor.errors import ConfigurationError, PublishRejected, VersionConflict
from tests.endtoend.oracle import last_per_key
from tests.endtoend.world import World
from tests.forked import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.broker


def counts(world: World) -> dict[str, int]:
    """How often each record of the test was merged: its version."""
    return {
        (record.key or b"").decode(): int(record.headers["version"])
        for record in sorted(world.read("sow"), key=lambda record: record.offset)
    }


def test_a_refused_number_is_merged_once_and_outlives_a_killed_worker_and_its_disk(world: World) -> None:
    """Sequences 1, 2 (refused), 3 and 4 (another version expected), 5: 2 and 4 are mended behind them, each once."""
    first = world.start()
    with Client("ledger", world.config) as client:
        futures = [
            client.delta_publish(world.name, body, key="7", sequence=number, ack="persisted", **more)
            for number, body, more in (
                (1, {"id": "7", "a": 1}, {}),
                (2, b"{", {}),
                (3, {"id": "7", "b": 1}, {}),
                (4, {"id": "7", "c": 1}, {"expect_version": 9}),
                (5, {"id": "7", "d": 1}, {}),
            )
        ]
        outcomes = [future.exception(120) for future in futures]
        assert [type(outcome) for outcome in outcomes[1:4]] == [PublishRejected, type(None), VersionConflict]
        first.kill()
        world.forget_state()
        second = world.start()
        assert client.mark(world.name) == 5
        for number, body in ((2, {"id": "7", "mended": 2}), (4, {"id": "7", "mended": 4})):
            mended = client.delta_publish(world.name, body, key="7", sequence=number, ack="persisted").result(120)
            assert (mended.reason, mended.is_duplicate) == ("mended", False)
            again = client.delta_publish(world.name, body, key="7", sequence=number, ack="persisted").result(120)
            assert (again.reason, again.is_duplicate) == ("duplicate", True)
    assert last_per_key(world.read("sow")) == {"7": {"id": "7", "a": 1, "b": 1, "d": 1, "mended": 4}}
    assert counts(world) == {"7": 5}
    assert second.stop() == 0, second.log()


def test_one_command_does_not_silence_a_publisher_who_can_ask_for_its_mark(world: World) -> None:
    """The highest number there is is a dead letter that names the mark; the publisher goes on, and finds its place."""
    worker = world.start()
    with Client("ledger", world.config) as client:
        assert client.mark(world.name) is None
        for number in range(1, 9):  # Over all partitions.
            client.delta_publish(world.name, {"id": f"k{number}"}, sequence=number, ack="persisted").result(120)
        world.publish([(b"k1", {"id": "k1", "a": 1}, {"client": "ledger", "sequence": "9223372036854775807"})])
        world.settle()
        assert client.mark(world.name) == 8
        client.delta_publish(world.name, {"id": "k1", "b": 1}, sequence=9, ack="persisted").result(120)
        with pytest.raises(ConfigurationError, match="no topic"):
            client.mark("other")
    [letter] = world.read("dlq")
    assert letter.headers["dlq_reason"] == "bad_header"
    assert re.search(r"the highest number of this client that was taken here is [1-8]:", letter.headers["dlq_detail"])
    assert last_per_key(world.read("sow"))["k1"] == {"id": "k1", "b": 1}
    command = ["mark", "-c", str(world.file), world.name]
    assert run(*command, "ledger").stdout == "9\n"
    other = run(*command, "desk")
    assert (other.returncode, other.stdout) == (1, "")
    assert worker.stop() == 0, worker.log()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_thousand_names_do_not_displace_a_regular_publisher(
    bootstrap: str, tmp_path: Path, unique: str
) -> None:
    """After 100,000 commands with a name each, the repeats of two publishers are duplicates, also after a restore."""
    world = World(bootstrap, tmp_path, unique, partitions=1)
    first = world.start()
    own = [
        (b"own", {"id": "own", "n": number}, {"client": client, "sequence": str(number)})
        for client, numbers in (("ledger", (1, 2)), ("desk", (20261127,)))
        for number in numbers
    ]
    world.publish(own)
    world.publish([(b"k", {"id": "k"}, {"client": f"key-{n}", "sequence": "1"}) for n in range(100_000)])
    world.settle()
    world.publish(own)
    world.settle()
    assert counts(world)["own"] == 3
    first.kill()
    world.forget_state()
    second = world.start()
    world.publish(own)
    world.settle()
    assert counts(world)["own"] == 3
    assert second.stop() == 0, second.log()
    world.close()
