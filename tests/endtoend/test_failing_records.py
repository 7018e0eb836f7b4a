"""Tests of many records on which a processor raises: the cost of rejecting each does not grow with their number."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.hosting.pipeline import Pipeline
from processor.runtime.worker.assembly import Assembly
from processor.runtime.worker.worker_identity import ProcessSlot
from tests.endtoend.oracle import fold, last_per_key, replay
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.record import Record
    from tests.endtoend.world import World

pytestmark = pytest.mark.broker

RECORDS, BAD_EVERY = 1_600, 8


class Choosy(DeltaMerge):
    """A merging processor that raises on some records, after it has merged a part of the batch."""

    def process(self, records: Sequence[Record]) -> None:
        """Merge up to the first bad record, then raise."""
        for number, record in enumerate(records):
            if b'"bad"' in (record.value or b""):
                if number:
                    super().process(records[:number])
                raise ZeroDivisionError
        super().process(records)


@pytest.mark.long
def test_hundreds_of_failing_records_cost_little_each(world: World) -> None:
    """Every eighth of 1,600 records in one partition fails; the others are merged once each."""
    config, name = world.config, world.name
    world.publish(
        [
            (b"1", {"id": 1, f"f{number % 50}": "bad" if number % BAD_EVERY == 0 else number}, {})
            for number in range(RECORDS)
        ]
    )
    section = config.topics[name]
    pipeline = Pipeline.of(Choosy, section, name=name, topic=section)
    slot = ProcessSlot(config.state_dir)
    stop = threading.Event()
    thread = Assembly(config, slot).thread(pipeline, stop.is_set)
    runner = threading.Thread(target=thread.run, args=(stop,))
    began_s = time.monotonic()
    with capture_logs():  # As people see them on a terminal, five hundred tracebacks would take most of the time.
        runner.start()
        try:
            world.wait(lambda: world.processed() or not runner.is_alive(), "processing all input")
        finally:
            stop.set()
            runner.join(PATIENCE_S)
    failed = RECORDS // BAD_EVERY
    each_s = (time.monotonic() - began_s) / failed
    print(f"{each_s * 1000:.1f} ms a failing record")
    slot.release()
    read = world.read("publish")
    bad = [record for record in read if b'"bad"' in (record.value or b"")]
    assert [letter.value for letter in world.read("dlq")] == [record.value for record in bad]
    expected = fold([record for record in read if record not in bad])
    assert last_per_key(world.read("sow")) == expected
    assert replay(world.read("delta")) == expected
    assert len(world.read("sow")) == RECORDS - failed
