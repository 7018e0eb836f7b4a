"""A short run of the pipeline; `make program NAME=pipeline` runs it at full length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

from spark_integration.session import NoJava, require_java
from tests.programs.pipeline.run import Plan, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(("kills", "moves"), [(3, 0), (0, 1)])
def test_a_pipeline_under_kills_keeps_its_promises(
    bootstrap: str, tmp_path: Path, unique: str, kills: int, moves: int
) -> None:
    """Jobs and a worker are killed, or the merge moves to Spark and back with deaths, and all checks hold."""
    try:
        require_java()
    except NoJava as error:
        pytest.skip(str(error))
    plan = Plan(seed=23, seconds=10, rate=300, keys=1_000, kills=kills, worker_kills=min(kills, 1), moves=moves)
    outcome = run(plan, bootstrap, tmp_path, unique, print)
    assert not outcome.wrong, str(outcome)
