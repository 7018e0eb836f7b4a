"""Tests of a disk that fills up: the worker stops with the reason, wipes no state, and goes on once there is space."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.endtoend.test_exactly_once import check
from tests.small_disk import small_disks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.endtoend.world import World

pytestmark = pytest.mark.broker

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
