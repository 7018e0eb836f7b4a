"""Tests of publishers that ask for acks, with a worker and a broker."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Ack, Client
from processor.errors import AcksMissing, PublishRejected
from processor.kafka.partitioner import partition_for
from tests.forked import run
from tests.waiting import PATIENCE_S, with_limits

if TYPE_CHECKING:
    from tests.endtoend.world import World

pytestmark = pytest.mark.broker

COUNT = 2_000
WRONG_EVERY = 97


def publish_by_command(world: World, *arguments: str, given: str) -> subprocess.CompletedProcess[str]:
    """Run `sowstream publish` to its end."""
    return run("publish", world.name, *arguments, "-c", str(world.file), given=given)


def test_every_command_is_acknowledged_or_fails(world: World):
    """Each of 2,000 deltas is acknowledged as persisted and in the SOW then, or fails with its reason."""
    world.start()
    told: list[Ack] = []
    with Client("desk", world.config) as client:
        futures = []
        for number in range(COUNT):
            # A body that contradicts its key is the worker's to reject.
            data = {"id": "other" if number % WRONG_EVERY == 0 else str(number), "n": number}
            futures.append(
                client.delta_publish(
                    world.name, data, str(number), ack="processed,persisted", on_ack=told.append, expiration=0
                )
            )
        client.flush(PATIENCE_S)
        assert all(future is not None and future.done() for future in futures)
        merged = {int(record.key or b""): record for record in world.read("sow")}
    for number, future in enumerate(futures):
        assert future is not None
        if number % WRONG_EVERY == 0:
            error = future.exception(0)
            assert isinstance(error, PublishRejected)
            assert error.reason == "key_mismatch"
            assert "/id" in error.detail
            assert number not in merged
        else:
            ack = future.result(0)
            assert (ack.ack_type, ack.status, ack.sow_key) == ("persisted", "success", str(number))
            assert ack.sequence == number + 1
            assert merged[number].headers["sequence"] == str(ack.sequence)
            assert merged[number].headers["client"] == ack.client
            assert merged[number].partition == partition_for(b"%d" % number, 4)
    assert len(told) == 2 * COUNT
    _two_of_one_name(world)
    _repeats_after_a_crash(world)
    _callbacks_publish(world)
    _by_command(world)


def _two_of_one_name(world: World) -> None:
    """Two clients that call themselves the same do not drop each other's records."""
    with Client("desk", world.config) as one, Client("desk", world.config) as other:
        answers = [
            client.delta_publish(world.name, {"id": f"twin{number}"}, ack="persisted")
            for number in range(20)
            for client in (one, other)
        ]
        for answer in answers:
            assert answer is not None
            assert answer.result(PATIENCE_S).reason is None


def _repeats_after_a_crash(world: World) -> None:
    """A publisher that numbers its commands itself may repeat them: they are acknowledged, and not merged again."""
    for reason in (None, "duplicate"):
        with Client("feed", world.config) as client:
            for sequence in (7, 8):
                answer = client.publish(
                    world.name, {"id": "once"}, ack="persisted", sequence=sequence, command_id=f"c{sequence}"
                )
                assert answer is not None
                ack = answer.result(PATIENCE_S)
                assert (ack.reason, ack.client, ack.command_id) == (reason, "feed", f"c{sequence}")
    with Client("reader", world.config) as client:
        message = client.get(world.name, "once")
        assert message is not None
        versions = [int(record.headers["version"]) for record in world.read("sow") if record.key == b"once"]
        assert versions == [versions[0], versions[0] + 1]
        assert message.version == versions[-1]


def _callbacks_publish(world: World) -> None:
    """A callback may publish the next command, and one that flushes is refused instead of hanging."""
    done = threading.Event()
    refused: list[Any] = []
    with Client("chain", world.config) as client:

        def next_one(ack: Ack) -> None:
            assert ack.sequence is not None
            if ack.sequence == 5:
                done.set()
                return
            client.publish(world.name, {"id": "chain", "n": ack.sequence}, ack="persisted", on_ack=next_one)
            try:
                client.flush()
            except AcksMissing as error:
                refused.append(error)

        client.publish(world.name, {"id": "chain"}, ack="persisted", on_ack=next_one)
        assert done.wait(PATIENCE_S)
    assert len(refused) == 4


def _by_command(world: World) -> None:
    """`sowstream publish --ack persisted` ends with 0 if all lines were merged, and with 1 and the line if not."""
    well = publish_by_command(world, "--ack", "persisted", "--header", "expiration=60", given='{"id":1}\n{"id":2}\n')
    assert (well.returncode, well.stdout) == (0, "")
    assert well.stderr == f"2 records sent to {world.name}, 2 acknowledged.\n"
    ill = publish_by_command(world, "--ack", "persisted", "--key", "k", given='{"n":1}\n{"id":"other"}\n')
    assert ill.returncode == 1
    first, last = ill.stderr.splitlines()
    assert first.startswith("line 2: rejected: key_mismatch: /id")
    assert last == f"2 records sent to {world.name}, 1 acknowledged, 1 rejected."


def test_without_a_worker_flush_and_close_end(world: World):
    """`flush` reports the number of missing acks and the remedy; a closed client leaves no future open."""
    futures = []
    threads = set(threading.enumerate())

    def publish_and_wait() -> None:
        with Client("desk", world.config) as client:
            futures.extend(client.publish(world.name, {"id": number}, ack="persisted") for number in range(3))
            assert client._command_sender is not None
            client._command_sender.deliver(PATIENCE_S)
            client.flush(0.5)

    with pytest.raises(AcksMissing, match=rf"time is over: 3\. .* `sowstream worker {world.name}`"):
        publish_and_wait()
    for future in futures:
        assert future is not None
        assert isinstance(future.exception(0), AcksMissing)
    assert "sowstream-acks" not in [thread.name for thread in set(threading.enumerate()) - threads]
    done = with_limits(
        lambda limit_s: publish_by_command(world, "--ack", "persisted", "--timeout", limit_s, given='{"id":1}\n'),
        lambda done: "time is over" in done.stderr,
    )
    assert done.returncode == 1
    said, error = done.stderr.splitlines()
    assert said == f"1 record sent to {world.name}, 0 acknowledged."
    assert "time is over: 1." in error
