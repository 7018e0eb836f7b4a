"""Checks a pipeline against Kafka, the disk, Java and PySpark, in seconds, before Spark is started.

A *problem* keeps a job from running; a *note* is a fact that it waits for, such as a topic that does not exist yet.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from processor.errors import BrokerUnavailable, ConfigurationError
from processor.kafka.admin.admin import Admin
from spark_integration.foundation.options import client_properties
from spark_integration.foundation.small_files import small_files, without_scheme
from spark_integration.pipeline.driver_claim import holder_of
from spark_integration.pipeline.ingesting.sources import SOURCE_FORMATS
from spark_integration.session import connector_problem, require_java

if TYPE_CHECKING:
    from spark_integration.pipeline.driver_claim import Holder
    from spark_integration.pipeline.pipeline_settings import PipelineJob, PipelineSettings

_CONNECTOR: Final = "spark-sql-kafka-0-10"
_OTHER_FILES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables by which a path without a scheme may be one of another file system."""


class RunFinding(NamedTuple):
    """A finding about a job, or about all of them."""

    place: str
    """The place in the file, with its line; empty: none."""
    text: str
    """The finding, and what to do."""
    kind: Literal["problem", "outage", "note"] = "problem"
    """An outage is a problem that is over when Kafka answers."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


def check_run(pipeline: PipelineSettings, jobs: Sequence[PipelineJob]) -> list[RunFinding]:
    """Check whether jobs can run here and now; all findings, problems first.

    Args:
        pipeline: the settings, which were checked when they were read.
        jobs: the jobs to run.
    """
    drivers = [*_drivers(pipeline, jobs)]
    # A driver that runs has its port.
    findings = [*_spark(pipeline), *([] if drivers else _port(pipeline)), *_kafka(pipeline, jobs)]
    if not any(name in os.environ for name in _OTHER_FILES) and "spark.hadoop.fs.defaultFS" not in pipeline.spark:
        for job in jobs:
            findings += _disk(pipeline, job)
    for job in jobs:
        findings += _format(pipeline, job)
    findings += drivers
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.kind == "note")


def _spark(pipeline: PipelineSettings) -> Iterator[RunFinding]:
    """Find what keeps Spark from starting: Java, or the Kafka connector."""
    try:
        require_java()
    except ConfigurationError as error:
        yield RunFinding("", str(error))
    own = [text for name, text in pipeline.spark.items() if name.startswith(("spark.jars", "spark.driver.extra"))]
    if not any(_CONNECTOR in text for text in own) and (problem := connector_problem()) is not None:
        yield RunFinding("", problem)


def _port(pipeline: PipelineSettings) -> Iterator[RunFinding]:
    """Find a port of the metrics that is in use."""
    if pipeline.metrics_port:
        from processor.telemetry.page_server import listening_socket  # noqa: PLC0415 - slow

        try:
            listening_socket(pipeline.metrics_port, pipeline.metrics_host).close()
        except OSError as error:
            place = pipeline.place_at_top("metrics_port")
            reason = str(error.strerror).partition(" (while")[0]
            yield RunFinding(place, f"{pipeline.metrics_port}: {reason}; choose another one")


def _kafka(pipeline: PipelineSettings, jobs: Sequence[PipelineJob]) -> Iterator[RunFinding]:
    """Find Kafka clusters that do not answer, and topics that they do not have."""
    clusters: dict[tuple[tuple[str, str], ...], set[str] | str] = {}
    for job in jobs:
        try:
            kafka = client_properties(pipeline.topics.kafka, pipeline.spark_kafka(job.settings.kafka))
        except ConfigurationError as error:
            yield RunFinding(pipeline.place(job.name, "kafka"), str(error))
            continue
        key = tuple(sorted(kafka.items()))
        if key not in clusters:
            try:
                clusters[key] = {*Admin(kafka, awaits_names=True).cluster().topics}
            except BrokerUnavailable as error:
                clusters[key] = str(error)
        known = clusters[key]
        if isinstance(known, str):
            yield RunFinding("", known, "outage")
            continue
        for topic in job.kind.kafka_topics(job.settings, pipeline.topics):
            if topic not in known:
                yield RunFinding(
                    pipeline.place(job.name),
                    f"waits for the Kafka topic {topic!r}; `sowstream topics apply` creates those of the settings",
                    "note",
                )


def _disk(pipeline: PipelineSettings, job: PipelineJob) -> Iterator[RunFinding]:
    """Find local directories that a job cannot read or write."""
    settings: Any = job.settings
    source = getattr(getattr(settings, "source", None), "path", None)
    local = None if source is None else _local(source)
    if local is not None and not any(sign in str(local) for sign in "*?[{"):
        if _exists(local) is None:
            yield RunFinding(pipeline.place(job.name, "from", "path"), f"{local} cannot be read by this user")
        elif not local.exists():
            yield RunFinding(
                pipeline.place(job.name, "from", "path"), f"waits for {local}, which does not exist yet", "note"
            )
        elif not os.access(local, os.R_OK | (os.X_OK if local.is_dir() else 0)):
            yield RunFinding(pipeline.place(job.name, "from", "path"), f"{local} cannot be read by this user")
    written = {
        ("to", "path"): getattr(getattr(settings, "to", None), "path", None),
        ("quarantine",): getattr(settings, "quarantine", None),
        (): pipeline.checkpoint(job.name),
    }
    for place, path in written.items():
        target = None if path is None else _local(path)
        if target is None:
            continue
        above = next(one for one in (target, *target.parents) if _exists(one))
        if not above.is_dir():
            yield RunFinding(pipeline.place(job.name, *place), f"{target} cannot be made: {above} is no directory")
        elif not os.access(above, os.W_OK | os.X_OK):
            yield RunFinding(pipeline.place(job.name, *place), f"{target}: {above} cannot be written by this user")


def _format(pipeline: PipelineSettings, job: PipelineJob) -> Iterator[RunFinding]:
    """Find a format that only a source of Spark's which is installed there can read."""
    name = getattr(getattr(job.settings, "source", None), "format", "json")
    if name in SOURCE_FORMATS or "." in name:
        return
    close = difflib.get_close_matches(name, SOURCE_FORMATS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    place = pipeline.place(job.name, "from", "format")
    yield RunFinding(place, f"{name!r} needs a streaming source of that name in Spark{hint}", "note")


def _drivers(pipeline: PipelineSettings, jobs: Sequence[PipelineJob]) -> Iterator[RunFinding]:
    """Find other processes of this machine that run the jobs, each once; one elsewhere is found when Spark runs."""
    found: dict[tuple[str, int], tuple[Holder, list[str]]] = {}
    for job in jobs:
        files = small_files(pipeline.checkpoint(job.name), None)
        try:
            holder = None if files is None else holder_of(files)
        except ConfigurationError as error:
            yield RunFinding(pipeline.place(job.name), str(error))
            continue
        if holder is not None and not holder.is_released and holder.is_alive:
            found.setdefault((holder.machine, holder.process), (holder, []))[1].append(job.name)
    for holder, (name, *others) in found.values():
        yield RunFinding(pipeline.place(name), holder.refusal(others))


def _exists(path: Path) -> bool | None:
    """Return whether a path exists; None if this user may not look."""
    try:
        return path.exists()
    except PermissionError:
        return None


def _local(path: str) -> Path | None:
    """The path on this machine; None for another file system."""
    local = without_scheme(path)
    return local if local.is_absolute() else None
