"""Tests of a group whose offsets are lost or set back: no input record is merged a second time."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from processor.config import load
from processor.kafka.admin.admin import Admin
from processor.store.marks import POSITION_NAME
from processor.trial.broker import EmbeddedBroker
from tests.endtoend.world import Worker, World
from tests.forked import run
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker

_KEYS = 12
_GUARANTEES = ("exactly_once", "at_least_once")
_QUICK = ("exactly_once", True)


class Account(World):
    """A topic of sums: each delta adds one to its key, so that a record merged twice shows."""

    def __init__(self, bootstrap: str, directory: Path, name: str, guarantee: str = "exactly_once") -> None:
        rules = {"sum": "sum", "tags": "append"}
        super().__init__(
            bootstrap, directory, name, more={"guarantee": guarantee}, source_header=True,
            merge_rules={f"/{field}": rule for field, rule in rules.items()},
        )  # fmt: skip
        self.published = 0

    def add(self, rounds: int = 5) -> None:
        """Add one to each key, a number of times."""
        for number in range(rounds):
            tag = self.published + number
            self.publish([(b"%d" % key, {"id": key, "sum": 1, "tags": [tag]}, {}) for key in range(_KEYS)])
        self.published += rounds

    def sums(self, name: str | None = None) -> dict[int, int]:
        """Read the sum of each key from the SOW topic."""
        records = {record.key: json.loads(record.value) for record in self.read("sow", name)}
        for record in records.values():
            assert record["tags"] == sorted(set(record["tags"])), "a record was merged twice, or out of order"
        return {record["id"]: record["sum"] for record in records.values()}

    def expect(self) -> None:
        """Check that each published record was merged once."""
        assert self.sums() == dict.fromkeys(range(_KEYS), self.published)

    def run(self) -> Worker:
        """Merge all waiting records, then stop properly."""
        worker = self.start()
        self.settle()
        assert worker.stop() == 0, worker.log()
        return worker

    def lose_group(self, name: str | None = None) -> None:
        """Delete the group, as `kafka-consumer-groups --delete` does."""
        group = f"{self.config.application_id}.{name or self.name}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_consumer_groups([group])[group].result()

    def members(self) -> list[Any]:
        """Return the members of the group."""
        group = f"{self.config.application_id}.{self.name}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return list(admin.describe_consumer_groups([group])[group].result().members)

    def set_back(self, offset: int = 0, topic: str | None = None) -> None:
        """Set every offset of the group, as `kafka-consumer-groups --reset-offsets` does."""
        topic, group = topic or f"{self.name}.publish", f"{self.config.application_id}.{self.name}"
        places = [TopicPartition(topic, number, offset) for number in range(4)]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group].result()

    def change(self, **settings: Any) -> None:
        """Change settings at the top of the file."""
        self.file.write_text(yaml.safe_dump(yaml.safe_load(self.file.read_text()) | settings))
        self.config = load(self.file)

    def hold(self, *words: str) -> None:
        """Start a worker that holds all partitions and logs these words; no record is merged."""
        before = self.sums()
        worker = self.start()
        self.wait(lambda: worker.file.read_text().count("partition held") >= 4, "the hold of four partitions")
        said = " ".join(worker.file.read_text().split())
        for word in ("offsets_lost", "sowstream offsets adopt", *words):
            assert word in said
        assert worker.stop() == 0, worker.log()
        assert self.sums() == before

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `sowstream offsets`."""
        return run("offsets", *arguments, "-c", str(self.file))

    def adopt(self, origin: str, *more: str) -> str:
        """Adopt offsets; returns the command's output."""
        done = self.command("adopt", self.name, "--from", origin, "--yes", *more)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def make(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[Callable[..., Account]]:
    """Create an account whose workers have merged some records and are stopped."""
    made: list[Account] = []

    def merged(guarantee: str = "exactly_once") -> Account:
        made.append(Account(bootstrap, tmp_path, unique, guarantee))
        made[0].add()
        made[0].run()
        made[0].expect()
        return made[0]

    yield merged
    for account in made:
        account.close()


@pytest.mark.parametrize(
    ("guarantee", "keeps_state"),
    [
        pytest.param(guarantee, keeps_state, marks=() if (guarantee, keeps_state) == _QUICK else pytest.mark.long)
        for guarantee in _GUARANTEES
        for keeps_state in (True, False)
    ],
)
def test_a_deleted_group_goes_on_where_the_outputs_stand(make, guarantee, keeps_state):
    """With and without local state the mark topic has the input position of the SOW topic."""
    account = make(guarantee)
    account.lose_group()
    if not keeps_state:
        account.forget_state()
    account.add()
    assert "going on where the outputs stand" in account.run().log()
    account.expect()


@pytest.mark.long
@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_a_deleted_group_after_a_kill_merges_each_record_once(make, guarantee):
    """Records that were sent without a transaction and never committed are recognised, too."""
    account = make(guarantee)
    for _ in range(3):
        records = len(account.read("sow"))
        account.add(30)
        victim = account.start()
        account.wait(lambda records=records: len(account.read("sow")) > records, "a merged record")
        victim.kill()
        account.wait(lambda: not account.members(), "an empty group")
        account.lose_group()
    account.run()
    account.expect()


@pytest.mark.long
@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_a_group_that_was_set_back_is_held_until_its_offsets_are_adopted(make, guarantee):
    """To continue at these offsets would add every record twice."""
    account = make(guarantee)
    account.set_back()
    account.add()
    account.hold("somebody has set the group back")
    shown = account.command("show", account.name)
    assert (shown.returncode, shown.stdout.count("group was set back")) == (1, 4)
    assert "goes on where the outputs stand" in account.adopt("sow")
    assert account.command("show", account.name).returncode == 0
    account.run()
    account.expect()


@pytest.mark.long
def test_another_application_takes_over_only_by_adoption(make):
    """Under a new application_id the group has no offset, and the mark topic names the old one."""
    account = make()
    letters = [(b"%d" % key, {"id": key, "sum": 1, "tags": [account.published]}, {"dlq_reason": "bad_header"})
               for key in range(_KEYS)]  # fmt: skip
    account.publish(letters, "dlq")
    account.published += 1
    assert run("dlq", "replay", account.name, "-c", str(account.file)).returncode == 0
    account.run()
    account.change(application_id=f"renamed-{account.name}")
    account.add()
    account.hold("its outputs were made by application_id", f"app-{account.name}")
    account.change(queues={f"{account.name}_jobs": {"underlying": account.name}})
    shown = account.command("adopt", account.name, "--from", "sow").stderr
    assert f"app-{account.name}.{account.name}_jobs has acknowledged" in " ".join(shown.split())
    account.change(queues={})
    account.adopt("sow")
    waiting = run("dlq", "list", account.name, "-c", str(account.file))
    assert (waiting.stdout, "No dead letters" in waiting.stderr) == ("", True), "sent back before, and waiting again"
    worker = account.start()
    shown = account.command
    account.wait(lambda: account.sums() == dict.fromkeys(range(_KEYS), account.published), "the sums")
    refused = shown("adopt", account.name, "--from", "earliest", "--yes")
    assert (refused.returncode, "Stop the workers first" in refused.stderr) == (1, True)
    assert worker.stop() == 0
    account.change(application_id=f"app-{account.name}")
    account.hold("its outputs were made by application_id", f"renamed-{account.name}")
    account.expect()


@pytest.mark.long
def test_without_group_and_position_offsets_must_be_adopted(make):
    """After an upgrade from a version without positions the SOW records name their input."""
    account = make()
    producer = Producer({"bootstrap.servers": account.bootstrap})
    for number in range(4):
        producer.produce(f"{account.name}.mark", None, POSITION_NAME, number)
    assert producer.flush(PATIENCE_S) == 0
    account.lose_group()
    account.add()
    account.hold("nothing says which input its outputs have")
    only_shown = account.command("adopt", account.name, "--from", "sow")
    assert "Nothing was changed" in only_shown.stderr
    account.adopt("sow")
    account.run()
    account.expect()


@pytest.mark.long
def test_earliest_merges_again_and_latest_skips(make):
    """The command reports the number of records that are merged again or skipped."""
    account = make()
    account.add(1)
    assert "offsets are skipped" in account.adopt("latest")
    shown = account.command("show", account.name)
    assert [line.split("\t")[5:] for line in shown.stdout.splitlines()] == [["0", "ok"]] * 4
    assert "offsets are merged again" in account.adopt("earliest")
    worker = account.start()
    account.wait(lambda: set(_sums(account).values()) == {11}, "merging everything again")
    assert worker.stop() == 0


@pytest.mark.long
def test_a_copy_goes_on_where_its_outputs_stand(make):
    """A conflated topic has an input position with its note, although it has no marks of its own."""
    account = make()
    worker = account.start("conflate", account.conflated)
    assert not worker.is_expected_to_end
    account.wait(lambda: _sums(account, account.conflated) == account.sums(), "the copy")
    assert worker.stop() == 0
    count = len(account.read("delta", account.conflated))
    account.lose_group(account.conflated)
    account.add()
    account.run()
    worker = account.start("conflate", account.conflated)
    account.wait(lambda: _sums(account, account.conflated) == account.sums(), "the copy again")
    assert worker.stop() == 0
    assert "going on where the outputs stand" in worker.log()
    assert len(account.read("delta", account.conflated)) > count


@pytest.mark.long
def test_an_installation_whose_copy_has_no_mark_topic_runs_and_is_warned(make):
    """An installation of an older version has no such topic; `topics apply` creates it."""
    account = make()
    Admin(account.config.kafka).delete([f"{account.conflated}.mark"])
    account.wait(lambda: f"{account.conflated}.mark" not in Admin(account.config.kafka).cluster().topics, "deletion")
    worker = account.start("conflate", account.conflated)
    account.wait(lambda: _sums(account, account.conflated) == account.sums(), "the copy")
    assert worker.stop() == 0
    assert "does not exist: if the group's offsets are lost" in " ".join(worker.log().split())
    shown = account.command("show", account.conflated)
    assert "does not exist, so nothing but the group's offsets" in shown.stderr


@pytest.mark.long
def test_a_mirrored_cluster_is_held_and_adopted(make, tmp_path, unique):
    """Topics are copied, and offsets translated to earlier ones as by MirrorMaker: no record is added twice."""
    account = make()
    account.add()
    account.run()
    directory = tmp_path / "mirror"
    directory.mkdir()
    with EmbeddedBroker() as broker:
        mirror = Account(broker.bootstrap, directory, unique)
        for role in ("publish", "sow", "delta", "mark"):
            _copy(account, mirror, role)
        mirror.set_back(3)
        mirror.published = account.published
        mirror.hold("another topic of this name", "as on a mirrored cluster")
        refused = mirror.command("adopt", unique, "--from", "sow", "--yes")
        assert (refused.returncode, "whose offsets mean nothing here" in refused.stderr) == (1, True)
        # Everything was merged before it was copied: the end of the copy is where its outputs stand.
        mirror.adopt("latest")
        mirror.add()
        mirror.run()
        mirror.expect()
        mirror.close()


def _sums(account: Account, name: str | None = None) -> dict[int, int]:
    """Compute the sums."""
    records = {record.key: json.loads(record.value) for record in account.read("sow", name)}
    return {record["id"]: record["sum"] for record in records.values()}


def _copy(account: Account, mirror: Account, role: str) -> None:
    """Copy a topic's records to the same partitions of the other cluster, where their offsets differ."""
    topic = f"{account.name}.{role}"
    consumer = Consumer({"bootstrap.servers": account.bootstrap, "group.id": "mirror", "auto.offset.reset": "earliest",
                         "isolation.level": "read_committed", "enable.partition.eof": True})  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(4)])
    producer = Producer({"bootstrap.servers": mirror.bootstrap})
    ended: set[int] = set()
    while len(ended) < 4:
        for message in consumer.consume(1_000, 0.1):
            if message.error() is not None:
                ended.add(message.partition())
                continue
            producer.produce(topic, message.value(), message.key(), message.partition(), headers=message.headers())
    assert producer.flush(120) == 0
    consumer.close()
