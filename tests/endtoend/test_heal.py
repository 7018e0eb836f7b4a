"""Tests of keys in two partitions: found, shown, and healed by running workers during updates."""

from __future__ import annotations

import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from confluent_kafka import Producer

from processor.cli.main import run
from processor.client import Client
from processor.config import load
from processor.kafka.partitioner import partition_for
from tests.endtoend.world import World
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.endtoend.oracle import Seen

pytestmark = pytest.mark.broker

PARTITIONS = 3


class Split(World):
    """A world whose publishers chose partitions by a rule of their own."""

    def __init__(self, bootstrap: str, directory: Path, name: str, **topic: Any) -> None:
        super().__init__(bootstrap, directory, name, partitions=PARTITIONS, foreign_partition="accept", **topic)

    def send(self, records: Sequence[tuple[int, bytes, Any]]) -> None:
        """Publish to the given partitions: partition, key and value."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for partition, key, value in records:
            producer.produce(f"{self.name}.publish", json.dumps(value).encode(), key, partition)
        assert producer.flush(120) == 0

    def live(self, name: str | None = None) -> dict[bytes, list[Seen]]:
        """Return the live records of each key, of all partitions."""
        last: dict[tuple[bytes | None, int], Seen] = {}
        for record in self.read("sow", name):
            last[record.key, record.partition] = record
        by_key: dict[bytes, list[Seen]] = {}
        for record in last.values():
            if record.value is not None:
                by_key.setdefault(record.key or b"", []).append(record)
        return by_key

    def at_home(self, name: str | None = None) -> bool:
        """Return whether each key has one record, in its own partition."""
        return all(
            [record.partition for record in records] == [partition_for(key, PARTITIONS)]
            for key, records in self.live(name).items()
        )

    def heal(self, *words: str) -> int:
        """Run the command; returns its exit code."""
        return run(["topics", "heal", self.name, "-c", str(self.file), *words])


@pytest.fixture
def astray(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[Split]:
    """A topic with keys in wrong partitions, under `foreign_partition: accept`.

    Keys 0 to 9 have two records, and of even ones the newer is in the wrong place; 10 to 14 are in a wrong place only,
    15 to 19 at home only.
    """
    made = Split(bootstrap, tmp_path, unique)
    made.start()
    first, second = [], []
    for number in range(20):
        key, home = b"%d" % number, partition_for(b"%d" % number, PARTITIONS)
        at_home = (home, key, {"id": number, "at": "home"})
        away = ((home + 1) % PARTITIONS, key, {"id": number, "at": "away"})
        if number < 10:
            first.append(at_home if number % 2 == 0 else away)
            second.append(away if number % 2 == 0 else at_home)
        else:
            first.append(away if number < 15 else at_home)
    for records in (first, second):
        made.send(records)
        made.settle()
    yield made
    made.close()


@pytest.fixture
def split(astray: Split) -> Split:
    """Create the same topic, once its workers have `foreign_partition: move`."""
    assert astray.workers[0].stop() == 0
    tree = yaml.safe_load(astray.file.read_text())
    tree["topics"][astray.name]["foreign_partition"] = "move"
    astray.file.write_text(yaml.safe_dump(tree))
    astray.config = load(astray.file)
    astray.start()
    astray.start("conflate", astray.conflated)
    return astray


def test_the_newer_record_stays_in_its_own_partition(split: Split, capfd: pytest.CaptureFixture[str]):
    """Every key keeps its newer record in its own partition; the copy follows, and each key has a line."""
    assert not split.at_home()
    assert split.heal() == 0
    assert split.at_home()
    assert {int(key): json.loads(record.value or b"")["at"] for key, (record,) in split.live().items()} == {
        number: "away" if (number % 2 == 0 and number < 10) or 10 <= number < 15 else "home" for number in range(20)
    }
    lines = capfd.readouterr().out.splitlines()
    assert {line.split(":")[0] for line in lines} == {str(number) for number in range(15)}
    split.wait(lambda: split.at_home(split.conflated), "the conflated copy following")
    assert len(split.live(split.conflated)) == 20
    assert split.read("dlq") == []
    assert split.heal() == 0
    assert capfd.readouterr().out == ""


def _dry_run_changes_nothing(split: Split, capfd: pytest.CaptureFixture[str]) -> None:
    """It prints the same lines, sends no record, and ends with 1 as long as a key is to be healed."""
    before = split.read("sow"), split.read("publish")
    assert split.heal("--dry-run") == 1
    told = capfd.readouterr()
    assert len(told.out.splitlines()) == 15
    assert "15 keys" in told.err
    assert (split.read("sow"), split.read("publish")) == before


def test_check_and_doctor_report_split_keys(split: Split, capfd: pytest.CaptureFixture[str]):
    """Both report the number of keys in two partitions, and the command that heals them; a dry run changes nothing."""
    for words in (["topics", "check"], ["topics", "check", "--keys"], ["doctor"]):
        run([*words, "-c", str(split.file)])
        told = capfd.readouterr().out
        assert "has 10 keys in two partitions, and 5 in a wrong place only" in told
        assert f"sowstream topics heal {split.name}" in told
    _dry_run_changes_nothing(split, capfd)
    assert split.heal() == 0
    capfd.readouterr()
    run(["topics", "check", "--keys", "-c", str(split.file)])
    told_after = capfd.readouterr()
    assert "two partitions" not in told_after.out
    assert "each key is in its own partition" in told_after.err


@pytest.mark.long
def test_updates_go_on_during_the_heal(split: Split):
    """Deltas of all keys that are published during the heal are merged in the right partition."""
    chance, counts = random.Random(7), dict.fromkeys(range(20), 0)
    is_over = threading.Event()

    def publish() -> None:
        with Client("feed", load(split.file)) as client:
            while not is_over.wait(0.002):
                number = chance.randrange(20)
                counts[number] += 1
                client.delta_publish(split.name, {"id": number, "n": counts[number]})

    feed = threading.Thread(target=publish)
    feed.start()
    try:
        code = split.heal()
    finally:
        is_over.set()
        feed.join()
    split.settle()
    assert code == 0
    assert split.at_home()
    for key, (record,) in split.live().items():
        assert json.loads(record.value or b"").get("n", 0) == counts[int(key)]
    assert split.read("dlq") == []


def test_a_subscriber_that_keeps_up_has_each_record_in_the_end(split: Split):
    """A subscriber to full records has all of them after the heal, and no deletion too many."""
    expected = {
        str(number): {"id": number, "at": "away" if number in (0, 2, 4, 6, 8, 10, 11, 12, 13, 14) else "home"}
        for number in range(20)
    }
    codes: list[int] = []
    heal = threading.Thread(target=lambda: codes.append(split.heal()))
    held: dict[str | None, Any] = {}
    deletions = 0
    with (
        Client("desk", load(split.file)) as desk,
        desk.sow_and_subscribe(split.name, options="oof", timeout_s=PATIENCE_S) as messages,
    ):
        for message in messages:
            if message.command == "group_end":
                heal.start()
            elif message.command == "oof":
                deletions += 1
                held.pop(message.sow_key, None)
            elif message.sow_key is not None:
                held[message.sow_key] = message.data
            if deletions == 15 and held == expected:
                break
        heal.join()
    assert (held, deletions, codes) == (expected, 15, [0])


def test_a_heal_without_a_worker_fails(split: Split, capfd: pytest.CaptureFixture[str]):
    """After the timeout it ends with 1; once a worker runs, a second heal completes."""
    for worker in split.workers:
        worker.kill()
    assert split.heal("--timeout", "1") == 1
    assert "no worker has carried out the commands" in capfd.readouterr().err
    split.start()
    assert split.heal() == 0
    assert split.at_home()


def test_under_accept_a_key_may_be_anywhere(astray: Split, capfd: pytest.CaptureFixture[str]):
    """No key is to be healed, nor a copy; `get` asks all partitions and returns the newer of two records."""
    assert astray.heal() == 2
    assert "nothing to heal" in capfd.readouterr().err
    assert run(["topics", "heal", astray.conflated, "-c", str(astray.file)]) == 2
    assert f"heal that one (sowstream topics heal {astray.name})" in capfd.readouterr().err

    with Client("desk", load(astray.file)) as desk:
        messages = {number: desk.get(astray.name, str(number)) for number in (0, 1, 10, 15, 99)}
    at = {number: None if message is None else message.data["at"] for number, message in messages.items()}
    assert at == {0: "away", 1: "home", 10: "away", 15: "home", 99: None}
