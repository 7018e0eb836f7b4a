"""A topic of which nearly everything is rejected stops the worker, unless the settings let it pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.world import World

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.broker


def test_a_topic_full_of_rubbish_stops_the_worker_until_it_may_pass(
    bootstrap: str, tmp_path: Path, unique: str
) -> None:
    """Exit code 1, with what was found and what to do; nothing of it is committed. With ratio 1 all of it is."""
    world = World(bootstrap, tmp_path, unique, dlq_window_records=50, partitions=4)
    try:
        world.publish([(b"1", b"rubbish", {})] * 200)
        worker = world.start()
        worker.is_expected_to_end = True
        assert worker.process.wait(timeout=60) == 1, worker.log()
        said = worker.log().splitlines()[-1]
        assert f"sowstream: {unique}.publish partition" in said
        assert "50 of 50 records in a row were rejected, 50 as undecodable, such as offset 0: " in said
        assert f"raise topics.{unique}.dlq_max_ratio (now 0.9; 1 never stops)" in said
        assert world.read("dlq") == []

        world.file.write_text(world.file.read_text().replace("dlq_window_records: 50", "dlq_max_ratio: 1"))
        world.start()
        world.wait(lambda: len(world.read("dlq")) == 200, "rejecting everything")
    finally:
        world.close()
