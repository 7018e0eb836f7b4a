"""Moves a merge to Spark and back in one session: the values and versions, the refusals, and the ways to give up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
import yaml
from confluent_kafka import Producer

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import ConfigurationError, Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.repair.adoption import Adoption
from processor.repair.worker_positions import WorkerPositions
from processor.testing import ProcessorTestDriver
from processor.topics.family import control_spec
from tests.endtoend.world import World, random_commands
from tests.waiting import until

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

from spark_integration.merge.moves.handback import handback
from spark_integration.merge.moves.merge_query import Checkpoint
from spark_integration.merge.moves.run_merge import run_merge
from spark_integration.merge.moves.takeover import takeover
from spark_integration.merge.streaming.processor import InputEnd

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PARTITIONS = 2
PATIENCE_S = 400


@pytest.fixture
def world(bootstrap, unique, tmp_path) -> Iterator[World]:
    """A family and the control topic."""
    Admin({"bootstrap.servers": bootstrap}).create([control_spec()])
    world = World(bootstrap, tmp_path, unique, partitions=PARTITIONS)
    yield world
    world.close()


class Merging:
    """The merge on Spark, on a thread, until it ends by itself or with the block."""

    def __init__(self, spark, world) -> None:
        self._arguments = spark, world.name
        self._settings = {"config": str(world.file), "options": options(world), "trigger": "0 seconds"}
        self._stop, self.error = threading.Event(), None
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._stop.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            run_merge(*self._arguments, **self._settings, stop=self._stop, session_timeout_s=3)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error


def options(world: World) -> dict[str, str]:
    """The options of Spark's Kafka source."""
    return {"kafka.bootstrap.servers": world.bootstrap}


def expected(commands) -> dict[bytes, tuple[bytes, str]]:
    """Value and version of every live record, from one worker that merges all commands."""
    state = {}
    for partition in range(PARTITIONS):
        driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders", partition=partition, now_ms=1)
        driver.pipe_batch([command for command in commands if partition_for(command[0], PARTITIONS) == partition])
        driver.commit()
        for record in driver.read_output("sow"):
            state[record.key] = record.value, dict(record.headers)["version"].decode()
    return {key: record for key, record in state.items() if record[0] is not None}


def sow(world: World) -> dict[bytes, tuple[bytes, str]]:
    """Value and version of every live record of the SOW topic."""
    state = {seen.key: (seen.value, seen.headers["version"]) for seen in world.read("sow")}
    return {key: record for key, record in state.items() if record[0] is not None}


def wait(reached, what: str, merging: Merging) -> None:
    """Wait for a condition while a merge runs."""
    until_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert merging.error is None, merging.error
        assert time.monotonic() < until_s, f"{what} did not happen"
        time.sleep(0.1)


def test_values_versions_and_duplicates_go_on_over_both_moves(spark, world, tmp_path) -> None:
    """A worker, Spark and the worker again write what one worker would; each recognises the others' duplicates.

    Meanwhile a second merge on Spark is refused, and so is one while the workers merge.
    """
    commands = random_commands(3, 900, 30)
    numbered = [(b"1", {"id": 1, "x": n}, {"client": "c", "sequence": str(n)}) for n in range(6)]
    parts = [commands[:300] + numbered[:3], numbered[1:5] + commands[300:600], numbered[2:] + commands[600:]]
    settings = {"config": str(world.file), "options": options(world)}
    world.publish(parts[0])
    worker = world.start(name=world.name)
    world.settle()
    with pytest.raises(ConfigurationError, match="its workers merge it"):
        run_merge(spark, world.name, **settings)
    fence = takeover(spark, world.name, **settings, checkpoints=str(tmp_path / "checkpoints"))
    assert fence.checkpoint == str(tmp_path / "checkpoints" / f"{world.name}-1")
    assert sum(fence.offsets.values()) == len(parts[0])
    assert takeover(spark, world.name, **settings, checkpoints="elsewhere").checkpoint == fence.checkpoint
    world.publish(parts[1])
    wanted = expected(parts[0] + parts[1])
    with Merging(spark, world) as merging:
        wait(lambda: sow(world) == wanted, "merging on Spark", merging)
        with pytest.raises(ConfigurationError, match="on Spark already"):
            run_merge(spark, world.name, **settings, session_timeout_s=3)
        returned = handback(spark, world.name, **settings)
        merging.thread.join(60)
        assert not merging.thread.is_alive()
        assert merging.error is None
    assert sum(returned.offsets.values()) == len(parts[0]) + len(parts[1])
    world.publish(parts[2])
    world.settle()
    assert worker.stop() == 0
    assert sow(world) == expected(parts[0] + parts[1] + parts[2])
    assert handback(spark, world.name, **settings).phase == "workers"


def test_a_handback_that_died_in_its_drain_after_a_takeover_goes_on(spark, world, tmp_path) -> None:
    """The drain removes the commit of the last micro-batch, which may be the only one: the same command repeats it."""
    settings = {"config": str(world.file), "options": options(world)}
    world.publish([(b"%d" % n, {"id": n}, {}) for n in range(20)])
    fence = takeover(spark, world.name, **settings, checkpoints=str(tmp_path / "checkpoints"))
    Checkpoint(spark, fence.checkpoint).forget_commit(0)
    assert handback(spark, world.name, **settings).phase == "workers"
    world.start(name=world.name)
    world.settle()
    assert len(sow(world)) == 20


def with_queue(world: World) -> str:
    """The settings of the same topic with a queue over it, which only workers can fill."""
    file = world.directory / "with_queue.yaml"
    tree = yaml.safe_load(world.file.read_text())
    file.write_text(yaml.safe_dump(tree | {"queues": {f"{world.name}_jobs": {"underlying": world.name}}}))
    return str(file)


def test_a_takeover_that_spark_would_refuse_changes_nothing(spark, world, tmp_path) -> None:
    """A queue, or an option that Spark refuses, is found while the workers merge; later, the error names the way back.

    `handback` needs no query then, so that it gives up with the same settings.
    """
    settings = {"config": str(world.file), "options": options(world), "checkpoints": str(tmp_path / "checkpoints")}
    steps = []
    limited = options(world) | {"minOffsetsPerTrigger": "9"}
    for wrong, why in (
        ({"config": with_queue(world)}, "has the queue"),
        ({"options": limited}, "minOffsetsPerTrigger"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            takeover(spark, world.name, **settings | wrong, on_step=steps.append)
    assert steps == ["check", "check"]

    def die(step: str) -> None:
        if step == "begin":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        takeover(spark, world.name, **settings, on_step=die)
    with pytest.raises(ConfigurationError, match=f"has the queue [^\0]*`sowstream-spark handback {world.name}`$"):
        takeover(spark, world.name, **settings | {"config": with_queue(world)})
    assert handback(spark, world.name, config=with_queue(world), options=options(world)).phase == "workers"


def test_a_handback_expires_no_record_whose_update_waits(spark, bootstrap, unique, tmp_path) -> None:
    """An update that was published in time, and that Spark has not read, finds its record in the merge of the workers.

    So it does where the handback dies after its drain and is repeated, and with a queue that was added meanwhile.
    """
    Admin({"bootstrap.servers": bootstrap}).create([control_spec()])
    world = World(bootstrap, tmp_path, unique, partitions=1, expiration="40s")
    world.publish([(b"1", {"id": 1, "a": 1}, {})])
    worker = world.start(name=world.name)
    world.settle()
    settings = {"options": options(world)}
    takeover(spark, world.name, config=str(world.file), **settings, checkpoints=str(tmp_path / "checkpoints"))
    (record,) = world.read("sow")
    due_ms = int(record.headers["expires_at"])
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(f"{world.name}.publish", b'{"id":1,"b":2}', b"1", timestamp=due_ms - 1)
    assert producer.flush(PATIENCE_S) == 0
    until(lambda: time.time() * 1000 > due_ms + 5_000, "the record is due")

    def die(step: str) -> None:
        if step == "return":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        handback(spark, world.name, config=with_queue(world), **settings, on_step=die)
    assert handback(spark, world.name, config=with_queue(world), **settings).phase == "workers"
    world.settle()
    assert worker.stop() == 0
    assert [seen.value for seen in world.read("sow")][:2] == [b'{"id":1,"a":1}', b'{"id":1,"a":1,"b":2}']
    world.close()


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_repeated_micro_batch_of_a_drain_expires_nothing_more(spark, tmp_path, is_committed: bool) -> None:
    """A committed micro-batch expires nothing when it is repeated; another one expires what it may have written."""
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
    times = [1_000, 2_000, 3_000]

    def plan(number: int) -> None:
        lines = ["v1", json.dumps({"batchTimestampMs": times[number]}), json.dumps({"orders.publish": {"0": 0}})]
        (tmp_path / "offsets" / f"{number}").write_text("\n".join(lines))

    plan(0)
    plan(1)
    for number in range(2 if is_committed else 1):
        (tmp_path / "commits" / f"{number}").write_text("v1\n{}")
    checkpoint, end = Checkpoint(spark, str(tmp_path)), InputEnd(1_000 if is_committed else 2_000, 0)
    assert checkpoint.close_input() == end
    checkpoint.forget_commit(1)
    assert checkpoint.close_input() == end
    plan(2)
    assert checkpoint.close_input() == end


def test_moves_that_cannot_be_made_leave_the_workers_merging(spark, world, tmp_path) -> None:
    """A worker that stays, a used checkpoint and a lost one end a move with the remedy; nothing is merged twice."""
    settings = {"config": str(world.file), "options": options(world)}
    checkpoints = {"checkpoints": str(tmp_path / "checkpoints")}
    world.publish([(b"%d" % n, {"id": n}, {}) for n in range(20)])
    worker = world.start(name=world.name)
    world.settle()
    stopped = threading.Event()

    def freeze(step: str) -> None:
        if step == "drain":
            worker.process.send_signal(19)  # SIGSTOP: it cannot leave, and its session is not over yet.
            stopped.set()

    with pytest.raises(Stop, match=r"still has members, such as .* Stop the workers, then run the same command again"):
        takeover(spark, world.name, **settings, **checkpoints, timeout_s=0.5, on_step=freeze)
    assert stopped.is_set()
    worker.process.send_signal(18)  # SIGCONT
    world.publish([(b"1", {"id": 1, "a": 1}, {})])
    world.settle()

    def give_up(step: str) -> None:
        if step == "verify":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        takeover(spark, world.name, **settings, **checkpoints, on_step=give_up)
    assert handback(spark, world.name, **settings).phase == "workers"
    world.publish([(b"1", {"id": 1, "b": 1}, {})])
    world.settle()
    assert sow(world)[b"1"] == (b'{"id":1,"a":1,"b":1}', "3")
    (tmp_path / "checkpoints" / f"{world.name}-2").rename(tmp_path / "checkpoints" / f"{world.name}-3")
    with pytest.raises(ConfigurationError, match="has micro-batches already"):
        takeover(spark, world.name, **settings, **checkpoints)
    fence = takeover(spark, world.name, **settings, checkpoints=str(tmp_path / "others"))
    Checkpoint(spark, fence.checkpoint)._files.delete(Checkpoint(spark, fence.checkpoint)._path(fence.checkpoint), True)
    for command in (handback, run_merge):
        with pytest.raises(ConfigurationError, match="is gone, and with it the"):
            command(spark, world.name, **settings)
    assert handback(spark, world.name, **settings, lost_checkpoint=True).phase == "workers"
    world.wait(lambda: "offsets_lost" in worker.log(), "holding the partitions")
    with pytest.raises(ConfigurationError, match=r"outputs are of application_id app-.*@spark, so workers hold it"):
        takeover(spark, world.name, **settings, checkpoints=str(tmp_path / "more"))
    assert worker.stop() == 0
    with WorkerPositions(world.config, world.name) as workers:
        with pytest.raises(Stop, match="do not name their input"):
            Adoption(world.config, workers, "sow")
        Adoption(world.config, workers, "latest").write()
    world.start(name=world.name)
    world.publish([(b"1", {"id": 1, "c": 1}, {})])
    world.settle()
    assert sow(world)[b"1"] == (b'{"id":1,"a":1,"b":1,"c":1}', "4")
