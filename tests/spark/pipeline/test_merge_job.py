from __future__ import annotations

import pytest

from processor.wire.partition_marks import first_version

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


def test_each_run_over_the_input_of_now_merges_all_of_it(pipeline) -> None:
    """A run with `once` merges all input before it ends, the first one of a checkpoint too; records before it stay."""
    world = pipeline.world
    world.publish([(b"0", {"id": 0}, {"version": "3"})], "sow")
    pipeline.write(merging={"job": "merge", "topic": world.name})
    for run in range(2):
        world.publish([(b"%d" % n, {"id": n, "run": run}, {}) for n in range(10)])
        pipeline.run()
        begins: dict[bytes, int] = {}
        for record in world.read("publish"):
            begins.setdefault(record.key, first_version(0, record.offset))
        begins[b"0"] = 4  # The record before it has version 3.
        versions = {record.key: record.headers["version"] for record in world.read("sow")}
        assert versions == {key: str(begin + run) for key, begin in begins.items()}
