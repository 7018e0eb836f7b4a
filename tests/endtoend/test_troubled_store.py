"""Stores that are locked, full or damaged, or break under a processor, and a disk that fills up."""

from __future__ import annotations

import random
import re
import threading
from typing import TYPE_CHECKING, ClassVar

import pytest

from processor.api import Input, Output, Processor
from processor.codec import load_codec
from processor.errors import DiskUnusable, PartitionHeld, SowstreamError, StateDamaged, StateLocked
from processor.hosting.pipeline import Pipeline
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader
from processor.record import Stored
from processor.runtime.recovery import restorer as restoring
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.task import Task
from processor.runtime.worker.assembly import Assembly
from processor.runtime.worker.worker_identity import ProcessSlot
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from tests.endtoend.test_exactly_once import check
from tests.small_disk import small_disks
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pydantic import BaseModel

    from processor.api import Context
    from processor.record import Record
    from processor.store.contract import Progress
    from tests.endtoend.world import World


pytestmark = pytest.mark.broker

_TURN_S = 0.02


class FullDisk(MemoryStore):
    """A store that cannot be written."""

    def apply(self, changes: Mapping[bytes, Stored | None], progress: Progress) -> None:
        """Raise."""
        raise DiskUnusable("No space left on device")

    def wipe(self) -> None:
        """Fail the test: a full disk must not wipe a state."""
        pytest.fail("a good state was wiped")


class DamagedForEver(MemoryStore):
    """A store that stays damaged."""

    def apply(self, changes: Mapping[bytes, Stored | None], progress: Progress) -> None:
        """Raise."""
        raise StateDamaged("a block's checksum is wrong")


class Looking(Processor):
    """A processor that reads its state in each punctuation, once more after the store broke."""

    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"),)
    broken: ClassVar[list[int]] = []
    healed: ClassVar[threading.Event] = threading.Event()

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin."""
        self._partition = context.partition

    def process(self, records: Sequence[Record]) -> None:
        """Take no record."""

    def punctuate(self, now_ms: int) -> None:
        """Read the state, which is damaged the first time."""
        if not self.broken:
            self.broken.append(self._partition)
            raise StateDamaged("a block's checksum is wrong")
        if self._partition == self.broken[0]:
            self.healed.set()


@pytest.fixture
def restorer(world: World) -> Iterator[Callable[..., Restorer]]:
    """Create restorers of the world's SOW topic, which are closed at the end."""
    made: list[Restorer] = []

    def make(open_state: Callable[[int], LayeredState], stall_timeout_s: float = 60.0) -> Restorer:
        made.append(
            Restorer(
                reader=LogReader(world.config.kafka, group=f"app-{world.name}.{world.name}"),
                admin=Admin(world.config.kafka),
                source=f"{world.name}.publish",
                sow=f"{world.name}.sow",
                mark=f"{world.name}.mark",
                open_state=open_state,
                stall_timeout_s=stall_timeout_s,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def _pipeline(world: World) -> Pipeline:
    section = world.config.topics[world.name]
    return Pipeline.of(Looking, section, name=world.name, topic=section)


def _task(world: World) -> Task:
    return Task(_pipeline(world), 0, load_codec("json"))


def _until(restorer: Restorer, reached: Callable[[], object]) -> None:
    until(lambda: restorer.advance(_TURN_S) or reached(), pause_s=0)


def test_a_locked_directory_is_tried_again_and_not_all_the_time(
    world: World, restorer: Callable[..., Restorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last user may be releasing it; the wait for it is limited."""
    tries, held = [], []

    def locked(partition: int) -> LayeredState:
        tries.append(partition)
        raise StateLocked("in use")

    monkeypatch.setattr(restoring, "_LOCK_PATIENCE_S", 0.5)
    waiting = restorer(locked, stall_timeout_s=0.1)
    waiting.on_held = lambda task, error: held.append((task.partition, error.reason, str(error)))
    waiting.add(_task(world))
    _until(waiting, lambda: held)
    assert held == [(0, "state_locked", "in use")]
    assert len(tries) <= 0.5 / _TURN_S + 2
    assert not waiting.is_busy


def test_a_full_disk_stops_the_worker(world: World, restorer: Callable[..., Restorer]) -> None:
    """It stops at once: a wipe and a restore would not help, and cost the state."""
    full = restorer(lambda _: LayeredState(FullDisk(), cache_bytes=1 << 20))
    full.add(_task(world))
    with pytest.raises(DiskUnusable, match="No space left on device"):
        _until(full, lambda: False)


def test_a_store_that_is_damaged_again_and_again_is_held(world: World, restorer: Callable[..., Restorer]) -> None:
    """After a few wipes and restores the partition is held."""
    wiped: list[str] = []
    damaged = restorer(lambda _: LayeredState(DamagedForEver(), cache_bytes=1 << 20, on_wipe=wiped.append))
    held: list[PartitionHeld] = []
    damaged.on_held = lambda _, error: held.append(error)
    damaged.add(_task(world))
    _until(damaged, lambda: held)
    assert held[0].reason == "state_damaged"
    assert re.search(r"damaged again and again.*a block's checksum is wrong", str(held[0]))
    assert wiped == ["damaged"] * 3


def test_a_store_that_breaks_between_records_is_restored(world: World) -> None:
    """A processor also reads its state in punctuation."""
    slot = ProcessSlot(world.config.state_dir)
    stop, failed = threading.Event(), []
    thread = Assembly(world.config, slot).thread(_pipeline(world), stop.is_set)

    def run() -> None:
        try:
            thread.run(stop)
        except SowstreamError as error:
            failed.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    try:
        assert Looking.healed.wait(PATIENCE_S), failed
    finally:
        stop.set()
        runner.join(PATIENCE_S)
        slot.release()
    assert failed == []


MB = 1 << 20


@pytest.mark.long
def test_a_worker_whose_disk_is_full_stops_and_goes_on_with_more_room(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 1; later SOW, delta and input agree, and the state on disk was used."""
    monkeypatch.setenv("SOWSTREAM_RUNTIME__BLOCK_CACHE_BYTES", str(MB))
    rng = random.Random(41)
    print("seed 41")
    records = [(b"%d" % n, {"id": str(n), "noise": rng.randbytes(500).hex()}, {}) for n in range(14_000)]
    with small_disks(tmp_path) as make:
        disk = make(8 * MB)
        monkeypatch.setenv("SOWSTREAM_STATE_DIR", str(disk.path))
        world.publish(records)
        full = world.start()
        full.is_expected_to_end = True
        world.wait(lambda: full.process.poll() is not None, "stopping for the full disk")
        assert full.process.returncode == 1
        said = full.file.read_text()
        assert "No space left on device" in said
        assert f"{disk.path}/app-{world.name}/{world.name}/" in said
        assert "MB are free there" in said
        assert "make room, or give state_dir (a client: view_dir) a larger disk, then start again" in said
        assert "Traceback" not in said
        assert said.index('"event": "stopping"') < said.index('"event": "let go"')
        assert "wiped" not in said
        assert "damaged" not in said

        disk.grow(64 * MB)
        world.publish([(key, {"id": key.decode(), "n": 1}, {}) for key, _, _ in records[::100]])
        world.start()
        world.settle()
        check(world)
        for worker in world.workers:
            worker.kill()
