"""The functions give the same results in one process, on two executors, on a standalone cluster and on Spark Connect.

With another PySpark: `make test-spark PYSPARK=4.2.0`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from processor.config import Config
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyspark

import spark_integration
from tests.spark.functions_job import Job
from tests.spark.pipeline.test_executors import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(3600)]

ROOT = Path(spark_integration.__file__).parents[1]
MODES = ("local[2]", "local-cluster[2,1,1024]", "standalone", "connect")
KEEPS_STATE = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
"""Whether PySpark's client of Spark Connect has `transformWithStateInPandas`."""
STATE: dict[str, Any] = {"stream_changes_before": 2, "merge_stream": [[1, 7], [2, 8]]}
"""The result of each step with a stream that keeps state."""
EXPECTED: dict[str, Any] = {
    "publish_deltas": None,
    "load_merged": 2,
    "hand_over": None,
    "read_sow": [[1, 5], [2, 6]],
    "read_sow_filtered": [[2, 6]],
    "read_sow_as_of": [[1, 5], [2, 6]],
    "read_sow_inferred": "struct<id:bigint,qty:bigint>",
    "read_deltas": [[1, 5], [2, 6]],
    "read_changes": [[1, 5], [2, 6]],
    "stream_sow": 2,
    "stream_deltas": 2,
    "stream_changes": 2,
    "publish_stream": None,
    "publish_in_foreach_batch": None,
    "sow_format": [[1, 5], [2, 6]],
    "sow_format_pushed": [[2, 6]],
    "view_batch": [10, 12],
    "backfill": {"same": 2},
    "reconcile": True,
    "publish_records": None,
    "delete_records": None,
    "lag_listener": True,
    "schemas": ["id", "customer"],
}
"""The result of each step that is compared as it is."""
_NO_JVM = "this session has no JVM in this process, as those of Spark Connect have none; use a classic session"
_NO_STATE = "has no transformWithStateInPandas on Spark Connect; use a classic session"
REFUSED = {
    "publish_stream_unnamed": "a stream that is published needs a name of its own for each checkpoint: client=",
    "publish_in_foreach_batch_unnamed": "foreachBatch does not know its query: give client=",
    "publish_stream_behind": "the clock of Spark's driver is behind",
    "upsert_to": _NO_JVM,
    "read_snapshot": _NO_JVM,
    "read_versions": _NO_JVM,
    "takeover": _NO_JVM,
    "run_merge": _NO_JVM,
    "handback": _NO_JVM,
}
"""The steps that are errors on Spark Connect, each with a part of the message."""


class Runs:
    """Runs the steps in a mode, once; Spark is started by a process apart from the tests'."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap, self._directory = bootstrap, directory
        self._results: dict[str, dict[str, Any]] = {}
        self._prefix = f"modes{directory.stat().st_ino}"
        self.tasks: dict[str, set[str]] = {}
        """The executors that ran tasks, by mode."""

    def name(self, mode: str) -> str:
        """The name of the family of a mode."""
        return f"{self._prefix}_{MODES.index(mode)}"

    def results(self, mode: str) -> dict[str, Any]:
        """The result or the error of each step."""
        if mode not in self._results:
            self._results[mode] = self._run(mode)
        return self._results[mode]

    def _run(self, mode: str) -> dict[str, Any]:
        directory = self._directory / str(MODES.index(mode))
        directory.mkdir()
        section = {"partitions": 2, "key": ["/id"]}
        names = [f"{self.name(mode)}{suffix}" for suffix in ("", "_copy", "_stream")]
        tree = {"kafka": {"bootstrap.servers": self._bootstrap}, "topics": dict.fromkeys(names, section)}
        file = directory / "sowstream.yaml"
        file.write_text(yaml.safe_dump(tree))
        Admin(tree["kafka"]).create(specs(Config(**tree)))
        results = directory / "results.json"
        words = [names[0], str(file), self._bootstrap, str(directory), str(results)]
        kind = {"local[2]": "local", "connect": "connect"}.get(mode)
        if kind is None:
            self._submit(mode, directory, str(ROOT / "tests" / "spark" / "functions_job.py"), "submitted", *words)
        else:
            command = [sys.executable, "-m", "tests.spark.functions_job", kind, *words]
            with (directory / "log").open("wb") as log:
                subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL, timeout=3000,
                               check=False)  # fmt: skip
            assert results.exists(), (directory / "log").read_text(errors="replace")[-6000:]
        found: dict[str, Any] = json.loads(results.read_text())
        return found

    def _submit(self, mode: str, directory: Path, *program: str) -> None:
        cluster = Cluster(directory)
        if mode == "standalone":
            with cluster.standalone() as master:
                cluster.submit(*program, master=master)
        else:
            cluster.submit(*program, master=mode)
        self.tasks[mode] = {executor for counts in cluster.tasks().values() for executor in counts}


@pytest.fixture(scope="module")
def runs(bootstrap: str, tmp_path_factory) -> Runs:
    """The runs of this module."""
    return Runs(bootstrap, tmp_path_factory.mktemp("modes"))


@pytest.fixture(scope="module")
def done(runs: Runs) -> tuple[str, dict[str, Any]]:
    """The family's name, and the result or error of each step on Spark Connect."""
    pytest.importorskip("grpc", reason="gRPC is not installed: pip install 'sowstream[spark-connect]'")
    return runs.name("connect"), runs.results("connect")


@pytest.mark.parametrize("mode", MODES[:-1])
def test_the_functions_work_wherever_spark_runs(mode: str, runs: Runs) -> None:
    """Every function that Spark Connect does not refuse gives its result; where there are two executors, both work."""
    results = runs.results(mode)
    expected = EXPECTED | STATE
    assert {step: results.get(step, "not run") for step in expected} == expected
    assert (results["merge_batch"]["merged"], results["history_of"]["merged"]) == (2, 2)
    assert not results["session"].startswith("pyspark.sql.connect.")
    assert mode == "local[2]" or runs.tasks[mode] == {"0", "1"}


def test_each_function_gives_its_result(done: tuple[str, dict[str, Any]]) -> None:
    """Every function that needs no JVM gives on Spark Connect the result that it gives in a classic session."""
    _, results = done
    expected = EXPECTED | (STATE if KEEPS_STATE else {})
    assert {step: results.get(step, "not run") for step in expected} == expected
    assert results["session"].startswith("pyspark.sql.connect.")
    assert (results["merge_batch"]["merged"], results["history_of"]["merged"]) == (2, 2)


def test_the_rest_is_refused_by_name(done: tuple[str, dict[str, Any]]) -> None:
    """Functions that need the JVM, and streams without a name, are errors with a remedy."""
    _, results = done
    refused = REFUSED | ({} if KEEPS_STATE else dict.fromkeys(STATE, _NO_STATE))
    assert {step: text in str(results.get(step)) for step, text in refused.items()} == dict.fromkeys(refused, True), (
        results
    )


def test_every_function_has_a_step() -> None:
    """No public function is left out, and the page lists the ones that do not run."""
    covered = {*EXPECTED, *STATE, *REFUSED, "merge_batch", "history_of", "session"}
    assert covered == set(Job.STEPS)
    assert set(REFUSED) == set(Job.CONNECT_ONLY)
    elsewhere = {"LagListener": "lag_listener", "MergeListener": "merge_stream", "spark_session": "session",
                 "register_source": "sow_format", "schema_file": "schemas"}  # fmt: skip
    # A registry is asked by HTTP, without Spark.
    functions = {elsewhere.get(name, name) for name in spark_integration.__all__} - {"registry_schema"}
    assert functions <= covered


def test_a_published_stream_is_named_by_its_time(done: tuple[str, dict[str, Any]], bootstrap: str) -> None:
    """A stream that is published is numbered by the times of planning, a batch by the number that it was given."""
    from tests.spark.conftest import Family
    from tests.spark.published import planned_ms

    name, _ = done
    family = Family(f"{name}_copy", bootstrap)
    headers: Callable[[Any], dict[str, str]] = lambda message: {n: t.decode() for n, t in message.headers()}  # noqa: E731
    records = [(headers(message)["client"].split("/")[0], message) for message in family.read("publish", 2)]
    # One of `behind` was there before, with a number of later; the batch was refused, and so added none.
    assert sorted(client for client, _ in records) == ["behind"] + ["copier"] * 2 + ["own"] * 2
    assert all(planned_ms(message) > 1_700_000_000_000 for client, message in records if client == "copier")
    assert all(int(headers(message)["sequence"]) < 2**32 for client, message in records if client == "own")
