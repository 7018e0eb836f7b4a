"""Tests of a store that is locked, cannot be written, or breaks under a processor."""

from __future__ import annotations

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
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
