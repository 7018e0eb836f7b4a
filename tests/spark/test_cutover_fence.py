"""The fence between workers and Spark on a real Kafka, without Spark: who may move a merge, and who may merge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from processor.cli.main import command_line
from processor.errors import ConfigurationError, Stop, TopicFenced
from processor.installation.control_topic import ControlTopic
from processor.kafka.admin.admin import Admin
from processor.repair.adoption import Adoption
from processor.repair.worker_positions import WorkerPositions
from processor.topics.family import control_spec
from processor.wire.control import BACKFILL, SPARK, WORKERS
from processor.wire.partition_marks import first_version
from tests.endtoend.world import World

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.moves.move import BEGINNING, TO_SPARK, Move, fence_in
from spark_integration.merge.topic_family import TopicFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SESSION_TIMEOUT_S = 3.0


@pytest.fixture
def world(bootstrap, tmp_path, unique) -> Iterator[World]:
    """A family with the control topic, and no conflated copy."""
    Admin({"bootstrap.servers": bootstrap}).create([control_spec()])
    world = World(bootstrap, tmp_path, unique, partitions=2)
    yield world
    world.close()


def move(world: World) -> Move:
    """The right to move the world's topic, not yet asked for."""
    settings = topic_settings(world.name, world.file)
    return Move(settings, world.config.kafka, "takeover", session_timeout_s=SESSION_TIMEOUT_S)


def phase(world: World) -> str:
    """The phase of the fence on the topic."""
    settings = topic_settings(world.name, world.file)
    control = ControlTopic(world.config.kafka, Admin(world.config.kafka))
    return fence_in(control.read_existing(settings.application_id), settings).phase


def test_one_command_moves_a_merge_and_a_dead_one_cannot_write(world) -> None:
    """A second move is refused while the first lives; once it counts as dead, its writes fail and change nothing."""
    with move(world) as first:
        first.write(TO_SPARK, checkpoint="/a", number=1)
        with pytest.raises(ConfigurationError, match=r"takeover .*@.* at .* moves \S+ already"), move(world):
            pass
        # As after a pause, in the middle of a transaction, that was longer than its session.
        first._fenced._producer.send(first._fenced.control.topic, 0, [(b"open", b"", [])])
        first._fenced._producer._producer.flush(120)
        first.lease.close()
        with move(world) as second:
            assert (second.fence.phase, second.fence.checkpoint, second.fence.number) == (TO_SPARK, "/a", 1)
            second.write("workers")
            with pytest.raises(Stop, match="another process has taken over"):
                first.write(BEGINNING)
            assert phase(world) == "workers"


def test_workers_leave_at_a_fence_and_go_on_after_it(world) -> None:
    """A running worker commits and leaves at a fence, and one that starts waits; after it both merge all input."""
    world.publish([(b"%d" % n, {"id": n}, {}) for n in range(50)])
    begins = {seen.key: first_version(0, seen.offset) for seen in world.read("publish")}
    world.start(name=world.name)
    world.settle()
    with move(world) as moving:
        moving.write(TO_SPARK)
        offsets = moving.await_workers(30)
        ends = Admin(world.config.kafka).end_offsets(f"{world.name}.publish", range(2))
        assert offsets == ends
        moving.write(BEGINNING, offsets=offsets, moves_positions=True)
        world.publish([(b"%d" % n, {"id": n, "a": 1}, {}) for n in range(50)])
        world.start(name=world.name)
        world.wait(lambda: "waiting behind a fence" in world.workers[-1].log(), "waiting")
        assert moving.await_workers(0) == offsets
        assert len(world.read("sow")) == 50
        moving.write("workers", offsets=offsets, moves_positions=True)
    world.settle()
    versions: dict[bytes, list[int]] = {key: [] for key in begins}
    for seen in world.read("sow"):
        versions[seen.key].append(int(seen.headers["version"]))
    assert versions == {key: [begin, begin + 1] for key, begin in begins.items()}


def test_a_worker_without_the_fence_is_held_by_the_positions(world) -> None:
    """A worker that knows of no fence holds its partitions while the input positions are those of Spark."""
    world.publish([(b"1", {"id": 1}, {}), (b"2", {"id": 2}, {})])
    with move(world) as moving:
        moving.write(BEGINNING, offsets=moving.await_workers(0), moves_positions=True)
        moving.write("workers", moves_positions=False)  # The fence is gone, as for an old worker.
        worker = world.start(name=world.name)
        world.wait(lambda: "offsets_lost" in worker.log(), "holding the partitions")
    assert f"'{world.config.application_id}@spark'" in worker.log()
    assert world.read("sow") == []


def test_offsets_and_merges_of_others_are_refused_behind_a_fence(world) -> None:
    """`offsets adopt` and the functions of the library refuse a fenced topic, and say which command to run."""
    with move(world) as moving, TopicFamily(moving.settings, world.config.kafka) as family:
        family.refuse_fenced("now")
        moving.write(SPARK, checkpoint="/a", number=1)
        with (
            WorkerPositions(world.config, world.name) as workers,
            pytest.raises(TopicFenced, match=rf"Spark merges it .*`sowstream-spark handback {world.name}` moves"),
        ):
            Adoption(world.config, workers, "latest")
        with pytest.raises(ConfigurationError, match=r"cannot be merged: Spark merges it"):
            family.refuse_fenced("it cannot be merged")
        moving.write("workers")
        family.refuse_fenced("now")
        with WorkerPositions(world.config, world.name) as workers:
            Adoption(world.config, workers, "latest").write()


@pytest.mark.long
def test_after_a_lost_checkpoint_offsets_come_from_the_sources_of_records(bootstrap, tmp_path, unique) -> None:
    """Positions of Spark are those of its beginning: `--from sow` looks at the records that Spark has written."""
    Admin({"bootstrap.servers": bootstrap}).create([control_spec()])
    world = World(bootstrap, tmp_path, unique, partitions=2, source_header=True)
    records = [(b"%d" % n, {"id": n}, {}) for n in range(20)]
    world.publish(records)
    with move(world) as moving:
        moving.write(BEGINNING, offsets={0: 0, 1: 0}, moves_positions=True)
        for seen in world.read("publish"):
            headers = {"version": "1", "source": f"{world.name}.publish/{seen.partition}/{seen.offset}"}
            world.publish([(seen.key, seen.value, headers)], "sow")
        moving.write(WORKERS, offsets={})
    with WorkerPositions(world.config, world.name) as workers:
        adoption = Adoption(world.config, workers, "sow")
        assert adoption.offsets == Admin(world.config.kafka).end_offsets(f"{world.name}.publish", range(2))
        adoption.write()
    world.start(name=world.name)
    world.publish([(b"1", {"id": 1, "a": 1}, {})])
    world.settle()
    assert [seen.headers["version"] for seen in world.read("sow")].count("2") == 1
    assert len(world.read("sow")) == 21
    world.close()


@pytest.mark.parametrize(
    ("phase", "owner", "line"),
    [
        (SPARK, "Spark", "Spark merges it"),
        (TO_SPARK, "fence: to_spark", "its merge is being moved (phase to_spark"),
        (BACKFILL, "fence: backfill", "a backfill changes its records"),
    ],
)
def test_the_status_shows_who_merges(world, phase, owner, line) -> None:
    """`sowstream status` names Spark, a move or a backfill in place of the workers, and the next command."""
    with move(world) as moving:
        moving.write(phase, checkpoint="/a", number=1)
        runner, command = CliRunner(), ["status", world.name, "-c", str(world.file)]
        shown = runner.invoke(command_line(), command)
        parsed = json.loads(runner.invoke(command_line(), [*command, "--json"]).stdout)
        moving.write("workers")
        after = runner.invoke(command_line(), command)
    assert owner in shown.output
    assert f"{world.name}: {line}" in " ".join(shown.output.split())
    assert "no worker" not in shown.output
    assert parsed["pipelines"][0]["fence"]["phase"] == phase
    assert "no worker" in after.output
