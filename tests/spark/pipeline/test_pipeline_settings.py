from __future__ import annotations

from threading import Event

import pytest
import yaml

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration.cli import run_command
from spark_integration.foundation.small_files import LocalFiles
from spark_integration.pipeline.ingesting.sources import IngestSource
from spark_integration.pipeline.job import IDENTITY_FILE, Job, JobSettings, find_job, identify
from spark_integration.pipeline.job_status import job_status, positions
from spark_integration.pipeline.monitor import Draining, MicroBatches
from spark_integration.pipeline.pipeline_settings import PipelineSettings
from spark_integration.pipeline.runner import run_jobs

TOPICS = {
    "topics": {"orders": {}, "depth": {"key": ["/item"]}},
    "conflated": {"slow": {"underlying": "orders"}},
    "views": {"counts": {"underlying": "orders", "group_by": ["/item"], "fields": {"/n": "COUNT(*)"}}},
}

EXAMPLE = """\
settings: sowstream.yaml
checkpoints: ./checkpoints
jobs:
  ingest_orders: {job: ingest, from: {format: json, path: ./incoming}, topic: orders, key: [id], nulls: ignore,
                  quarantine: ./quarantine}
  archive:       {job: archive, topics: [orders], to: {format: parquet, path: ./archive}}
  book:          {job: table, topic: orders, to: {format: parquet, path: ./book}}
  history:       {job: table, topic: orders, kind: scd2, to: {format: parquet, path: ./history}}
  depth:         {job: features, from: [orders], sql: "SELECT item, sum(qty) AS qty FROM orders GROUP BY item",
                  topic: depth, key: [item], every: 10s}
"""


@pytest.fixture
def load(tmp_path):
    """Loads a text as the file of a pipeline."""
    (tmp_path / "sowstream.yaml").write_text(yaml.safe_dump(TOPICS))

    def load(text: str) -> PipelineSettings:
        (tmp_path / "pipeline.yaml").write_text(text)
        return PipelineSettings.load(tmp_path / "pipeline.yaml")

    return load


def _job(**settings):
    return yaml.safe_dump({"jobs": {"a": settings}})


@pytest.mark.parametrize(
    ("source", "limits"),
    [
        ({"path": "in"}, {"maxFilesPerTrigger": "1000", "maxFileAge": "36500d"}),
        (
            {"path": "in", "options": {"maxfilespertrigger": "7", "maxfileage": "1d"}},
            {"maxfilespertrigger": "7", "maxfileage": "1d"},
        ),
        ({"path": "in", "options": {"maxBytesPerTrigger": "7g"}}, {"maxBytesPerTrigger": "7g", "maxFileAge": "36500d"}),
        ({"format": "kafka", "topic": "raw"}, {"maxOffsetsPerTrigger": "1000000"}),
        ({"format": "kafka", "topic": "raw", "options": {"maxOffsetsPerTrigger": "7"}}, {"maxOffsetsPerTrigger": "7"}),
        ({"table": "raw"}, {}),
    ],
)
def test_a_micro_batch_of_an_ingest_is_bounded(source, limits) -> None:
    """The first micro-batch does not take all files or offsets at once, files of any age; the user's limit counts."""
    assert IngestSource.model_validate(source).bounded_options == limits


def test_the_example_of_the_specification_is_accepted(load, tmp_path) -> None:
    """Each job has its settings, and relative paths begin at the directory of the file."""
    pipeline = load(EXAMPLE)
    assert [*pipeline.jobs] == ["ingest_orders", "archive", "book", "history", "depth"]
    assert pipeline.checkpoint("book") == f"{tmp_path}/checkpoints/book"
    assert pipeline.jobs["book"].settings.to.path == f"{tmp_path}/book"
    assert pipeline.jobs["depth"].settings.every == 10
    assert [job.name for job in pipeline.chosen(["depth", "book"])] == ["book", "depth"]
    assert pipeline.spark_kafka() == {"kafka.bootstrap.servers": "localhost:9092"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job: x", r"line 1: job: there is no setting 'job'; did you mean 'jobs'\?"),
        ("jobs:\n  a: {topic: orders}", r"line 2: jobs.a.job: missing; write the kind, such as job: ingest"),
        (_job(job="ingets"), r"line 3: jobs.a.job: there is no job 'ingets'; did you mean 'ingest'\?"),
        (_job(job="no_such_module:Job"), r"'no_such_module:Job' cannot be loaded: No module named .*PYTHONPATH"),
        (_job(job="json:JSONDecoder"), r"job 'json:JSONDecoder' is no subclass of spark_integration.pipeline.job.Job"),
        (_job(job="table", topic="orders"), r"line 2: jobs.a.to: missing; it is required"),
        (
            "jobs:\n  a:\n    job: table\n    topic: orders\n    to: {path: x}\n    kindd: scd2",
            r"line 6: jobs.a.kindd: there is no setting 'kindd'; did you mean 'kind'\?",
        ),
        (
            _job(job="ingest", topic="orders", **{"from": {"pathh": "x"}}),
            r"jobs.a.from.pathh: there is no setting 'pathh'; did you mean 'path'\?",
        ),
        (
            _job(job="ingest", topic="orders", **{"from": {"path": "x", "order_by": ["at"]}}),
            "rows of files and of Kafka have the order of their lines and offsets; leave order_by out",
        ),
        (
            _job(job="ingest", topic="orders", **{"from": {"path": "x", "table": "y"}}),
            "jobs.a.from: give one of path, topic and table; it has path and table",
        ),
        (_job(job="ingest", topic="orders", **{"from": {"path": "x", "format": "csv"}}), "csv needs a schema"),
        (_job(job="archive", topics=["orders"], to={"format": "iceberg", "path": "x"}), "iceberg is written to"),
        (_job(job="table", topic="orders", to={"path": "x"}, every="often"), "'often' is not an interval"),
        (
            _job(job="features", **{"from": ["orders"]}, sql="", topic="depth", key=["item"], schemas={"ordres": ""}),
            "'ordres' is not in `from`",
        ),
        (
            _job(job="features", **{"from": ["orders", "Orders"]}, sql="", topic="depth", key=["item"]),
            "jobs.a.from: 'orders' and 'Orders' would be one view",
        ),
        ("jobs: [", "not YAML: .*in line 1"),
        ("jobs: {}\njobs: {}", "'jobs' stands here and in line 1"),
        ("- a", "expected settings such as `jobs:` at the top level"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_an_error_with_its_place_and_remedy(load, text, message) -> None:
    """A wrong file is refused with the line, the setting, and the closest name."""
    with pytest.raises(ConfigurationError, match=message):
        load(text)


def test_the_errors_of_all_jobs_are_shown_at_once(load) -> None:
    """One run shows each wrong setting of each job, a line for each."""
    jobs = {"a": {"job": "ingets"}, "b": {"job": "table", "topik": "orders"}, "c": {"job": "merge", "topic": "orders"}}
    with pytest.raises(ConfigurationError) as error:
        load(yaml.safe_dump({"jobs": jobs}))
    assert [line.split(": ")[1] for line in str(error.value).splitlines()[1:]] == [
        "jobs.a.job",
        "jobs.b.topic",
        "jobs.b.to",
        "jobs.b.topik",
    ]


def test_a_missing_file_is_an_error() -> None:
    """A file that does not exist is named, with the flag that names another one."""
    with pytest.raises(ConfigurationError, match="No such file or directory; name the pipeline's file with -c FILE"):
        PipelineSettings.load("/nowhere/pipeline.yaml")


def test_the_environment_has_priority(load, monkeypatch) -> None:
    """A variable replaces one setting of the file, so that a secret or a place need not be in it."""
    monkeypatch.setenv("SOWSTREAM_PIPELINE__CHECKPOINTS", "s3a://lake/checkpoints")
    monkeypatch.setenv("SOWSTREAM_PIPELINE__KAFKA", '{"bootstrap.servers": "kafka:9092"}')
    monkeypatch.setenv("SOWSTREAM_PIPELINE__JOBS__BOOK__TO__PATH", "/lake/book")
    pipeline = load(EXAMPLE)
    assert pipeline.checkpoint("book") == "s3a://lake/checkpoints/book"
    assert pipeline.spark_kafka() == {"kafka.bootstrap.servers": "kafka:9092"}
    assert pipeline.jobs["book"].settings.to.path == "/lake/book"


@pytest.mark.parametrize(
    ("jobs", "way"),
    [
        ({"a": ("orders", "orders")}, r"orders → \(a\) → orders"),
        ({"a": ("orders", "depth"), "b": ("depth", "orders")}, r"orders → \(a\) → depth → \(b\) → orders"),
        ({"a": ("slow", "orders")}, r"slow → \(a\) → orders → slow"),
        ({"a": ("counts", "orders")}, r"counts → \(a\) → orders → counts"),
    ],
)
def test_a_loop_of_jobs_is_refused(load, jobs, way) -> None:
    """A topic that is computed from itself is refused with the way, also over other jobs, copies and views."""
    keys = {"orders": "id", "depth": "item"}
    features = {name: {"job": "features", "from": [source], "sql": "SELECT 1", "topic": target, "key": [keys[target]]}
                for name, (source, target) in jobs.items()}  # fmt: skip
    with pytest.raises(ConfigurationError, match=f"the jobs go in a circle: {way}"):
        load(yaml.safe_dump({"jobs": features}))


def test_a_loop_over_a_kafka_topic_is_refused(load, tmp_path) -> None:
    """An ingest from a Kafka topic of its own topic is refused; a foreign Kafka topic may have the topic's name."""

    def ingest(source: str) -> PipelineSettings:
        return load(yaml.safe_dump({"jobs": {"a": {
            "job": "ingest", "from": {"format": "kafka", "topic": source}, "topic": "orders",
        }}}))  # fmt: skip

    assert list(ingest("orders").jobs) == ["a"]
    with pytest.raises(ConfigurationError, match=r"the jobs go in a circle: orders → \(a\) → orders"):
        ingest("orders.delta")
    (tmp_path / "sowstream.yaml").write_text(yaml.safe_dump({"topic_prefix": "desk.", **TOPICS}))
    assert list(ingest("orders.delta").jobs) == ["a"]
    with pytest.raises(ConfigurationError, match=r"the jobs go in a circle: orders → \(a\) → orders"):
        ingest("desk.orders.delta")


class Own(Job[JobSettings]):
    """A job of a user."""

    def start(self, session, *, once):
        """Start nothing."""
        raise NotImplementedError


def test_a_job_of_ones_own_is_found_by_its_class() -> None:
    """`package.module:Class` names a job that is no part of the package."""
    assert find_job(f"{__name__}:Own") is Own


def test_changed_settings_begin_a_new_epoch(load, tmp_path) -> None:
    """The id stays as long as the checkpoint; the epoch grows with the settings, and not with the pace."""
    files = LocalFiles(tmp_path / "checkpoint")

    def identity(**more):
        job = load(_job(job="table", topic="orders", to={"path": "x"}, **more)).jobs["a"]
        return identify("a", job.kind, job.settings, {}, files)

    first = identity()
    assert (first.epoch, len(first.id)) == (1, 12)
    assert identity(every="5s") == first
    changed = identity(keep=2)
    assert (changed.id, changed.epoch) == (first.id, 2)
    assert identity(keep=2) == changed
    with pytest.raises(ConfigurationError, match="belongs to the job 'a'"):
        identify("b", Own, JobSettings(job="x"), {}, files)
    files.write(IDENTITY_FILE, "{")
    with pytest.raises(ConfigurationError, match="is damaged"):
        identity()
    (tmp_path / "checkpoint" / IDENTITY_FILE).unlink()
    files.write("offsets/0", "v1")
    with pytest.raises(ConfigurationError, match=r"has micro-batches, and .* is gone"):
        identity()


def test_a_micro_batch_is_counted_once_and_none_begins_after_the_drain(tmp_path) -> None:
    """The counts outlive the process; a repeated batch does not count again; a drained job refuses the next one."""
    files, seen = LocalFiles(tmp_path), []

    def batches():
        return MicroBatches("a", files, lambda name, counts: seen.append((name, dict(counts))))

    first = batches()
    first.counted(lambda *_: {"published": 2})(None, 0)
    first.drain()
    with pytest.raises(Draining, match="batch 1 is left to the next start"):
        first.counted(lambda *_: {"published": 1 // 0})(None, 1)
    again = batches()
    again.counted(lambda *_: {"published": 2})(None, 0)
    again.counted(lambda *_: {"published": 3, "quarantined.undecodable": 1})(None, 1)
    assert again.totals == {"published": 5, "quarantined.undecodable": 1}
    assert seen == [("a", {"published": 2}), ("a", {"published": 3, "quarantined.undecodable": 1})]
    status = job_status("a", "ingest", files, None)
    assert (status.totals["published"], status.quarantined, status.committed) == (5, 1, None)


def test_the_positions_of_a_query_are_those_of_its_last_batch() -> None:
    """The offset log of Spark has a line for each source; only Kafka's has topics with partitions."""
    text = 'v1\n{"batchWatermarkMs":0}\n{"orders.sow":{"0":5,"1":7}}\n-\n{"logOffset":3}'
    assert positions(text) == {"orders.sow": {0: 5, 1: 7}}


def test_jobs_need_a_classic_session(load) -> None:
    """A session without a JVM in this process, as those of Spark Connect, is refused before a job starts."""
    pipeline = load(EXAMPLE)
    with pytest.raises(ConfigurationError, match="the jobs of a pipeline: this session has no JVM"):
        run_jobs(pipeline, pipeline.chosen(None), object(), once=True, stop=Event())


def test_the_command_refuses_wrong_names_before_spark_starts(load, capsys, tmp_path) -> None:
    """A wrong job or file ends the command with exit code 2 and one line on standard error."""
    load(EXAMPLE)
    file = str(tmp_path / "pipeline.yaml")
    assert run_command(["run", "boook", "-c", file]) == 2
    assert "there is no job 'boook'; did you mean 'book'?" in capsys.readouterr().err
    assert run_command(["run", "-c", str(tmp_path / "other.yaml")]) == 2
    assert "name the pipeline's file with -c FILE" in capsys.readouterr().err
