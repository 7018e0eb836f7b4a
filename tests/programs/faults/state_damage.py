"""Damages a state directory between two workers: the next worker detects it, and restores from the SOW topic."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from processor.store import layout
from tests.endtoend.test_restore import (
    fall_behind_the_horizon,
    remove_everything,
    remove_manifest,
    run_ahead,
    truncate_tables,
)
from tests.programs.faults.kills import start_and_settle, stop_all
from tests.programs.faults.load import commands, publish
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from tests.endtoend.world import Worker, World

_KEYS = 2_000
_RECORDS = 3_000
_DAMAGE_EVENTS = ("local state damaged", "local state wiped", "local state is not ours")


class Scene(NamedTuple):
    """The directories that a damage needs."""

    rng: random.Random
    partition: Path
    """The directory of the partition to damage."""
    other: Path
    """The directory of another partition of the same topic."""
    foreign: Path
    """The directory of the same partition of another topic."""


def remove_tables(scene: Scene) -> None:
    """Remove every table file."""
    for table in _files(scene, "*.sst"):
        table.unlink()


def remove_one_table(scene: Scene) -> None:
    """Remove one table file."""
    scene.rng.choice(_files(scene, "*.sst")).unlink()


def remove_current(scene: Scene) -> None:
    """Remove RocksDB's pointer to its list of files."""
    for file in _files(scene, "CURRENT"):
        file.unlink()


def truncate_manifest(scene: Scene) -> None:
    """Truncate the list of files in the middle."""
    for file in _files(scene, "MANIFEST-*"):
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size // 2)


def empty_every_file(scene: Scene) -> None:
    """Empty every file, as a file system does that lost all data not synced."""
    for file in _files(scene, "*"):
        file.write_bytes(b"")


def flip_bits(scene: Scene) -> None:
    """Flip bits in every kilobyte of every table."""
    for table in _files(scene, "*.sst"):
        data = bytearray(table.read_bytes())
        for begin in range(0, len(data), 1024):
            data[scene.rng.randrange(begin, min(begin + 1024, len(data)))] ^= 1 << scene.rng.randrange(8)
        table.write_bytes(data)


def flip_one_bit(scene: Scene) -> None:
    """Flip one bit of one file; if it is never read, it does no harm."""
    file = scene.rng.choice([file for file in _files(scene, "*") if file.stat().st_size])
    data = bytearray(file.read_bytes())
    data[scene.rng.randrange(len(data))] ^= 1 << scene.rng.randrange(8)
    file.write_bytes(data)


def take_the_neighbours(scene: Scene) -> None:
    """Replace the directory by a copy of another partition's."""
    _replace(scene.partition, scene.other)


def take_another_topics(scene: Scene) -> None:
    """Replace the directory by a copy of the same partition's of another topic."""
    _replace(scene.partition, scene.foreign)


def _of(damage: Callable[[Path], None]) -> Callable[[Scene], None]:
    return lambda scene: damage(scene.partition)


DAMAGES: dict[str, tuple[Callable[[Scene], None], bool]] = {
    "the directory is deleted": (_of(remove_everything), False),
    "all tables are missing": (remove_tables, True),
    "one table is missing": (remove_one_table, True),
    "the manifest is missing": (_of(remove_manifest), True),
    "CURRENT is missing": (remove_current, True),
    "tables are truncated": (_of(truncate_tables), True),
    "the manifest is truncated": (truncate_manifest, True),
    "every file is empty": (empty_every_file, True),
    "bits are flipped in every table": (flip_bits, True),
    "one bit is flipped": (flip_one_bit, False),
    "it is another partition's": (take_the_neighbours, True),
    "it is another topic's": (take_another_topics, True),
    "it is newer than SOW": (_of(run_ahead), True),
    "it is older than delete.retention.ms": (_of(fall_behind_the_horizon), True),
}
"""Each damage, and whether the worker must report it."""


def every_damage(stage: Stage) -> None:
    """Inflict each damage in turn, on all partitions but one of the same topic."""
    world, foreign = stage.world(), stage.world()
    for number, (what, (damage, is_reported)) in enumerate(DAMAGES.items()):
        publish(world, commands(stage.seed + number, _RECORDS, _KEYS))
        start_and_settle(world)
        if number == 0:
            publish(foreign, commands(stage.seed, _RECORDS, _KEYS))
            start_and_settle(foreign)
        for partition in range(3):
            places = (_directory(world, partition), _directory(world, 3), _directory(foreign, partition))
            damage(Scene(stage.rng, *places))
        publish(world, commands(stage.seed + 100 + number, _RECORDS, _KEYS))
        worker = world.start()
        world.settle()
        stop_all(world)
        stage.report(f"  {what}: {'; '.join(_reported_damage(worker)) or 'nothing said'}")
        stage.check(world)
        assert not is_reported or _reported_damage(worker), f"{what}: the worker did not tell of it\n{worker.log()}"


def stale_copy(stage: Stage) -> None:
    """Put an old copy back: the worker catches up from it and does not wipe it."""
    world = stage.world()
    publish(world, commands(stage.seed, _RECORDS, _KEYS))
    start_and_settle(world)
    copy = world.directory / "copy"
    shutil.copytree(_directory(world, 0).parent, copy)
    publish(world, commands(stage.seed + 1, _RECORDS, _KEYS))
    start_and_settle(world)
    _replace(_directory(world, 0).parent, copy)
    publish(world, commands(stage.seed + 2, _RECORDS, _KEYS))
    worker = world.start()
    world.settle()
    stop_all(world)
    stage.check(world)
    assert not _reported_damage(worker), worker.log()


def _directory(world: World, partition: int) -> Path:
    return world.config.state_dir / f"app-{world.name}" / world.name / str(partition)


def _files(scene: Scene, pattern: str) -> list[Path]:
    files = sorted(file for file in (scene.partition / layout.ROCKSDB_DIRECTORY).glob(pattern) if file.is_file())
    assert files, f"no {pattern} in {scene.partition}"
    return files


def _replace(directory: Path, copy: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)


def _reported_damage(worker: Worker) -> list[str]:
    """The kinds of damage that a worker has reported, each once."""
    text = worker.file.read_text(errors="replace")
    return [event for event in _DAMAGE_EVENTS if event in text]


SCENARIOS = [
    Scenario("state-damage", f"{len(DAMAGES)} kinds of damage to three of four state directories", 400, every_damage),
    Scenario("state-stale", "an old copy of the state is put back", 60, stale_copy),
]
