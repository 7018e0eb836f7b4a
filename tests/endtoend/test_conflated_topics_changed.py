"""Tests of changes to a conflated topic or its underlying: the worker ends with advice that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from processor.config import load
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from tests.endtoend.oracle import last_per_key
from tests.endtoend.test_topics_changed import _OFTEN, _ONCE, Watched, grow, published, recreate, watched
from tests.forked import run

if TYPE_CHECKING:
    from tests.endtoend.world import World

pytestmark = [pytest.mark.broker, pytest.mark.long]

_STEPS = ("(1) stop its workers;", "(2) save", "(3) sowstream topics apply;", "(4) sowstream offsets", "(5) start")


def conflater(world: World, interval_s: float = _ONCE) -> Watched:
    """Start a worker of the copy."""
    return watched(world, interval_s, "conflate", world.conflated)


def settle(world: World) -> None:
    """Wait until the copy has all records of its underlying."""
    world.settle()
    world.wait(
        lambda: last_per_key(world.read("sow", world.conflated)) == last_per_key(world.read("sow")),
        "the copy having it all",
    )


def stop(worker: Watched) -> None:
    """Stop a worker properly."""
    assert worker.stop() == 0, worker.log()


def set_to_earliest(world: World) -> None:
    """Carry out step 4 of the advice."""
    command = ["offsets", "adopt", world.conflated, "--from", "earliest", "--yes", "-c", str(world.file)]
    run(*command).check_returncode()


def held(world: World) -> str:
    """Start a worker of the copy that holds every partition; returns its log."""
    worker = conflater(world)
    world.wait(lambda: worker.file.read_text().count("partition held") >= 4, "the hold of four partitions")
    stop(worker)
    return " ".join(worker.file.read_text().split())


def rebuild(world: World) -> None:
    """Carry out steps 2 to 4 of the advice."""
    admin = Admin(world.config.kafka)
    wanted = {spec.name: spec for spec in specs(world.config, [world.conflated])}
    admin.delete(list(wanted))
    world.wait(lambda: not admin.cluster().topics.keys() & wanted.keys(), "the deletion")
    Admin(world.config.kafka).create(list(wanted.values()))
    set_to_earliest(world)


def reconfigure(world: World, old: str, new: str) -> None:
    """Change the settings for processes that start later."""
    world.file.write_text(world.file.read_text().replace(old, new))
    world.config = load(world.file)


def is_advice(world: World, said: str) -> bool:
    """Return whether a text has all steps in order."""
    places = [said.find(step) for step in _STEPS]
    return -1 not in places and places == sorted(places) and f"make {world.conflated} anew" in said


def test_a_copy_with_another_filter_is_refused_until_it_is_rebuilt(world: World) -> None:
    """Records of the former filter would stay in the copy; the advice brings those of the new one."""
    interval = "interval: 500ms"
    reconfigure(world, interval, f"{interval}\n    filter: /id >= 0")
    world.start()
    copying = conflater(world)
    published(world)
    settle(world)
    stop(copying)
    reconfigure(world, "/id >= 0", "/id < 20")
    code, said = conflater(world).ended()
    assert code == 2
    assert f"{world.conflated}: its records were made with another filter" in said
    assert is_advice(world, said)
    reconfigure(world, "/id < 20", "/id >= 0")
    copying = conflater(world)
    published(world, 41)
    settle(world)
    stop(copying)
    reconfigure(world, "/id >= 0", "/id < 20")
    rebuild(world)
    conflater(world)
    world.wait(lambda: len(last_per_key(world.read("sow", world.conflated))) == 20, "the records of the new filter")


def test_an_underlying_that_grows_ends_the_worker_of_its_copy(world: World) -> None:
    """The worker reads no record of the new partition, and describes the effect on the copy."""
    world.start()
    copying = conflater(world, _OFTEN)
    published(world)
    settle(world)
    grow(world, "sow", 5)
    code, said = copying.ended()
    assert (code, "has 5 partitions where the family" in said) == (1, True)
    assert f"as the `underlying` of {world.conflated}, and do what topics check says" in said
    assert {record.partition for record in world.read("sow", world.conflated)} <= {0, 1, 2, 3}


def test_a_copy_with_fewer_partitions_is_refused_until_it_is_rebuilt(world: World) -> None:
    """After more partitions of the underlying the advice brings a copy with all of its records."""
    merging, copying = world.start(), conflater(world)
    published(world)
    settle(world)
    stop(copying)
    assert merging.stop() == 0
    for role in ("publish", "sow", "delta", "ack", "dlq", "mark"):
        grow(world, role, 5)
    reconfigure(world, "partitions: 4", "partitions: 5")
    code, said = conflater(world).ended()
    assert code == 2
    assert f"{world.conflated}.sow has 4 partitions, and {world.name}.sow, which" in said
    assert is_advice(world, said)
    rebuild(world)
    world.start()
    conflater(world)
    published(world, 80)
    settle(world)
    assert {record.partition for record in world.read("sow", world.conflated)} == {0, 1, 2, 3, 4}


def test_a_copy_of_an_underlying_recreated_meanwhile_is_held(world: World) -> None:
    """Kafka has deleted the group's offsets: records of the new topic would pass for delivered ones."""
    merging, copying = world.start(), conflater(world)
    published(world)
    settle(world)
    stop(copying)
    assert merging.stop() == 0
    recreate(world, "sow")
    world.forget_state()
    world.start()
    world.publish([(b"%d" % number, {"id": number, "again": True}, {}) for number in range(20)])
    world.settle()
    before = world.read("sow", world.conflated)
    said = held(world)
    assert f"If {world.name}.sow was deleted and made anew" in said
    assert is_advice(world, said)
    assert world.read("sow", world.conflated) == before
    rebuild(world)
    conflater(world)
    settle(world)
    assert len(last_per_key(world.read("sow", world.conflated))) == 20


@pytest.mark.parametrize("interval_s", [_OFTEN, _ONCE], ids=["seen by the watch", "seen by the reader"])
def test_an_underlying_recreated_under_a_running_copy_ends_its_pipeline(world: World, interval_s: float) -> None:
    """Watch, reader and restart report it with the remedy."""
    merging, copying = world.start(), conflater(world, interval_s)
    published(world)
    settle(world)
    assert merging.stop() == 0
    recreate(world, "sow")
    if interval_s == _OFTEN:
        code, said = copying.ended()
        assert code == 1
    else:
        world.wait(lambda: "partition held" in copying.file.read_text(), "the hold")
        stop(copying)
        said = " ".join(copying.file.read_text().split())
    assert is_advice(world, said), said
    assert is_advice(world, held(world))


def test_under_a_new_application_id_a_copy_goes_on_once_its_offsets_are_set(world: World) -> None:
    """Two applications must not write the same topics; after the order to begin no update is delivered twice."""
    world.start()
    copying = conflater(world)
    published(world)
    settle(world)
    stop(copying)
    before = world.read("sow", world.conflated)
    tree, merged_by = yaml.safe_load(world.file.read_text()), world.config
    reconfigure(world, f"application_id: {tree['application_id']}", f"application_id: {tree['application_id']}-two")
    assert "its outputs were made by application_id" in held(world)
    set_to_earliest(world)
    conflater(world)
    world.config = merged_by  # Its group is the one that has to come to the end.
    world.publish([(b"1", {"id": 1, "again": True}, {})])
    settle(world)
    assert len(world.read("sow", world.conflated)) == len(before) + 1
