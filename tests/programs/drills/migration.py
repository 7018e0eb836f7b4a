"""The drill of a move to another cluster with MirrorMaker 2, and back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from processor.trial.broker import EmbeddedBroker
from processor.wire.publisher_headers import sequence_headers
from tests.programs.drills.drill import KEYS, Drill, DrillFailed
from tests.programs.drills.mirror import MirrorMaker

if TYPE_CHECKING:
    from pathlib import Path

_COPIED: Final = ("publish", "sow", "delta", "mark", "ack", "dlq")
_DESK: Final = "desk-1"
"""A publisher that numbers its commands."""


def cluster_migrated(drill: Drill) -> None:
    """A topic moves to another cluster, with records that were rolled back and numbers of a publisher, and back."""
    drill.publish()
    drill.start()
    roll_back(drill)
    numbered(drill, 1)
    drill.settle()
    drill.calamity("the topic is to move to another cluster, and publishers are stopped")
    with EmbeddedBroker(start_timeout_s=300) as broker:
        (folder := drill.folder / "other").mkdir()
        with Drill(broker.bootstrap, folder, drill.name, drill.settings) as other:
            move(drill, other, folder / "there")
            drill.recovered_s = other.recovered_s
            # On the way back the topics of before must not be there: what they have would be merged twice.
            drill.rounds = other.rounds
            drill.make_anew()
            move(other, drill, folder / "back")
            drill.recovered_s = max(drill.recovered_s, other.recovered_s)


def move(old: Drill, new: Drill, folder: Path) -> None:
    """Move the topic as the runbook says, publish more on the new cluster, and check every sum and version there."""
    began_s = time.monotonic()
    old.settle()
    old.stop(old.world.workers[-1])
    with MirrorMaker(folder, old.name, old=old.world.bootstrap, new=new.world.bootstrap) as mirror:
        try:
            old.wait(lambda: all(is_copied(old, new, role) for role in _COPIED), "MirrorMaker has copied all records")
        except DrillFailed as error:
            raise DrillFailed(f"{error}\n{mirror.log}") from None
    new.rounds = old.rounds
    new.command("offsets", "adopt", new.name, "--from", "latest", "--yes")
    # The state directory of the other cluster: its positions mean nothing here.
    new.start(state_dir=old.world.config.state_dir)
    numbered(new, 1, repeats=True)
    new.publish()
    new.settle()
    new.recovered_s = time.monotonic() - began_s
    new.expect()
    expect_versions(new)


def is_copied(old: Drill, new: Drill, role: str) -> bool:
    """Return whether a topic has the committed records of the other cluster, partition by partition."""

    def content(drill: Drill) -> list[object]:
        return [(one.partition, one.key, one.value, one.headers, one.timestamp_ms) for one in drill.world.read(role)]

    return content(old) == content(new)


def roll_back(drill: Drill) -> None:
    """Publish one to each key in a transaction, and roll it back."""
    producer = Producer({"bootstrap.servers": drill.world.bootstrap, "transactional.id": f"desk-{drill.name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key in range(KEYS):
        producer.produce(f"{drill.name}.publish", b'{"id":%d,"sum":1}' % key, b"%d" % key)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    drill.step("a publisher", "rolled back a transaction")


def numbered(drill: Drill, number: int, *, repeats: bool = False) -> None:
    """Publish one to each key, numbered; a number that was there before counts no more."""
    headers = [{name: value.decode() for name, value in sequence_headers(_DESK, number + key)} for key in range(KEYS)]
    drill.world.publish([(b"%d" % key, {"id": key, "sum": 1}, headers[key]) for key in range(KEYS)])
    drill.rounds += not repeats
    drill.step("a publisher", "repeated its last commands" if repeats else "numbered its commands")


def expect_versions(drill: Drill) -> None:
    """Check that each version of each key came once, in order: no delta is lost or double."""
    versions: dict[bytes | None, list[int]] = {}
    for one in drill.world.read("delta"):
        versions.setdefault(one.key, []).append(int(one.headers["version"]))
    wrong = {key: each for key, each in versions.items() if each != list(range(each[0], each[0] + drill.rounds))}
    if wrong or len(versions) != KEYS:
        raise DrillFailed(f"the versions are wrong: {wrong}, {len(versions)} of {KEYS} keys")
    drill.step("check", f"{drill.rounds} versions of each key came once, in order")
