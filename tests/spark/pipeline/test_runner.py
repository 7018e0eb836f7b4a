from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration.pipeline.jobs.merge import Merge
from spark_integration.pipeline.jobs.table import Table
from spark_integration.pipeline.runner import divide_shuffles

TASKS = "spark.sql.shuffle.partitions"


@pytest.mark.parametrize(
    ("named", "cores", "expected"),
    [({}, 1, "8"), ({}, 2, "8"), ({}, 10, "40"), ({}, 500, "200"), ({TASKS: "2"}, 10, None)],
)
def test_shuffles_have_a_few_tasks_for_each_core(named, cores, expected) -> None:
    """Without a number in Spark's settings, the tasks of a shuffle follow the cores."""
    own: dict[str, str] = {}
    context = SimpleNamespace(getConf=lambda: SimpleNamespace(contains=named.__contains__), defaultParallelism=cores)
    divide_shuffles(SimpleNamespace(sparkContext=context, conf=SimpleNamespace(set=own.__setitem__)))
    assert own.get(TASKS) == expected


def test_the_number_of_tasks_of_a_merge_stays_that_of_its_checkpoint() -> None:
    """A merge keeps its state by the tasks of its first start; a table keeps none in its checkpoint."""
    assert not Merge.is_stateless
    assert Table.is_stateless
