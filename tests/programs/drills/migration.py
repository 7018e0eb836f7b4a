"""The drill of a move to another cluster with MirrorMaker 2, and back."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import Producer

from processor.trial.broker import EmbeddedBroker
from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java
from processor.wire.publisher_headers import sequence_headers
from tests.programs.drills.drill import KEYS, Drill, DrillFailed

if TYPE_CHECKING:
    from types import TracebackType

_PROPERTIES: Final = Path(__file__).parents[3] / "deploy" / "mirrormaker.properties"
_LOCK: Final = Path(__file__).with_name("mirror.lock")
"""The jars of MirrorMaker, by `python -m processor.trial.broker.relock`."""
_COPIED: Final = ("publish", "sow", "delta", "mark", "ack")
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


class MirrorMaker:
    """Copies a family's topics from one cluster to another, from `with` to the end of its block."""

    def __init__(self, folder: Path, family: str, *, old: str, new: str) -> None:
        """Write its settings.

        Args:
            folder: an empty directory for settings and the log.
            family: the topic of the settings.
            old: the bootstrap address of the cluster to read.
            new: that of the cluster to write.
        """
        folder.mkdir()
        text = _PROPERTIES.read_text(encoding="utf-8").replace("OLD:9092", old).replace("NEW:9092", new)
        text = text.replace(r"= orders\\.", rf"= {family}\\.")
        # Each cluster of the drill has one broker.
        text = re.sub(r"(replication\.factor) = 3", r"\1 = 1", text)
        self._file = folder / "mirrormaker.properties"
        self._file.write_text(text, encoding="utf-8")
        self._log = folder / "mirrormaker.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-4000:]

    def __enter__(self) -> Self:
        jars = os.pathsep.join((class_path(_LOCK), class_path()))
        java = [str(find_java()), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", jars]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*java, "org.apache.kafka.connect.mirror.MirrorMaker", str(self._file)], stdout=log, stderr=log
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
