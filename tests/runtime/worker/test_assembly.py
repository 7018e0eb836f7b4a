"""Tests of the objects that the threads of a process share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from processor.config import Config
from processor.runtime.worker import assembly
from processor.runtime.worker.assembly import Assembly
from processor.runtime.worker.worker_identity import ProcessSlot

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MIB = 1024 * 1024


def test_the_consumers_of_a_process_share_the_memory_for_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three consumers gets a third: a process with many topics takes no more than one with a single topic."""
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(assembly, "GroupConsumer", lambda *_, **settings: opened.append(settings))
    config = Config.model_validate({"runtime": {"prefetch_bytes": 48 * MIB}, "state_dir": str(tmp_path)})
    slot = ProcessSlot(tmp_path)
    made = Assembly(config, slot, consumers=3)
    pipeline = SimpleNamespace(has_state=False, has_table=False, source="orders.publish", names=(), name="orders")
    monkeypatch.setattr(assembly, "_rebuild_steps", lambda _: "")
    made._consumer(cast("Any", pipeline), "group", cast("Any", None), cast("Any", None))
    slot.release()
    assert [settings["prefetch_bytes"] for settings in opened] == [16 * MIB]
