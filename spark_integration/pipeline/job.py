"""The contract of a job: its settings and paths, its surroundings, and the query that it starts; finds its class."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, ValidationInfo, model_validator
from pyspark.sql.streaming.readwriter import DataStreamWriter

from processor.config.section import IntervalS, Properties, Section
from processor.entry_points import find_installed, installed_names, load_installed
from processor.errors import ConfigurationError, unknown_name
from spark_integration.options import client_properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from processor.config import Config
    from spark_integration.pipeline.monitor import MicroBatches
    from spark_integration.small_files import SmallFiles


_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")


def located(path: str, home: Path) -> str:
    """The absolute form of a path: one with a scheme, such as `s3a://lake/orders`, stays as it is."""
    if _SCHEME.match(path) or path.startswith("/"):
        return path.rstrip("/") or path
    return str((home / path).resolve())


def _located(path: str, info: ValidationInfo) -> str:
    home = (info.context or {}).get("home")
    return path if home is None else located(path, home)


DataPath: TypeAlias = Annotated[str, AfterValidator(_located)]
"""A file or a directory on any file system that Spark knows; a relative one begins at the pipeline's file."""

TargetFormat: TypeAlias = Literal["parquet", "delta", "iceberg"]
"""The format of the files: `delta` and `iceberg` need their package in the session."""


class Target(Section):
    """Section `to` of a job."""

    format: TargetFormat = "parquet"
    """`parquet`, `delta` or `iceberg`."""
    path: DataPath | None = None
    """The directory, for `parquet` and `delta`."""
    table: str | None = None
    """The name of the table in a catalog, for `delta` and `iceberg`."""

    @model_validator(mode="after")
    def _has_one_place(self) -> Target:
        """Check that the place fits the format."""
        if (self.path is None) == (self.table is None):
            raise ValueError("give one of path and table")
        if self.format == "parquet" and self.path is None:
            raise ValueError("parquet is written to a directory: give path")
        if self.format == "iceberg" and self.table is None:
            raise ValueError("iceberg is written to a table of a catalog: give table, such as lake.db.orders")
        return self

    @property
    def place(self) -> str:
        """The path, or the name of the table."""
        return self.path or self.table or ""


EVERY_S: Final = 1.0
"""The default time between the starts of two micro-batches, in seconds."""


class JobSettings(Section):
    """Base of the settings of a job: immutable, and an unknown key is an error."""

    job: str
    """The kind of the job: a built-in name, an entry point of `sowstream.jobs`, or `package.module:Class`."""
    every: IntervalS = Field(default=EVERY_S, ge=0)
    """Time between the starts of two micro-batches."""
    kafka: Properties = Field(default_factory=dict)
    """Kafka properties of this job alone, in librdkafka's or Java's names; they beat those of the pipeline."""


SettingsT = TypeVar("SettingsT", bound=JobSettings)


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The id and the epoch of a job; the client names of its records begin with them."""

    id: str
    """A random id, as old as the checkpoint."""
    epoch: int
    """Counts the versions of the settings and the code, from 1."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """The surroundings of a job."""

    name: str
    """The name of the job in `pipeline.yaml`; also the name of its query."""
    topics: Config
    """The settings of the topics, `sowstream.yaml`."""
    kafka: dict[str, str]
    """Options of Spark's Kafka source and sink for this job, each with the prefix `kafka.`."""
    checkpoint: str
    """The directory of the checkpoint of its query."""
    files: SmallFiles
    """The files in the directory of the checkpoint."""
    identity: JobIdentity
    """The id and the epoch of the job, from which its client names derive."""
    batches: MicroBatches
    """Counts and drains the micro-batches."""

    @property
    def admin_kafka(self) -> dict[str, str]:
        """Librdkafka's properties for questions to Kafka."""
        return client_properties(self.topics.kafka, self.kafka)

    @property
    def client(self) -> str:
        """The prefix of the client names of this job, unique for its checkpoint and epoch."""
        return f"{self.topics.group_prefix}.{self.name}/{self.identity.id}.{self.identity.epoch}"


class Job(ABC, Generic[SettingsT]):
    """A job of a pipeline: one streaming query.

    A job of your own is a subclass with `settings_type`, named in `pipeline.yaml` as `job: my_package.my_module:MyJob`
    or by an entry point of the group `sowstream.jobs`.
    """

    settings_type: ClassVar[type[JobSettings]] = JobSettings
    """The model of its settings, by which `pipeline.yaml` is checked."""
    is_stateless: ClassVar[bool] = False
    """True if the query keeps no state in its checkpoint, so that each start may divide shuffles among other tasks."""

    def __init__(self, context: JobContext, settings: SettingsT) -> None:
        """Create the job; nothing is started, and Kafka is not asked."""
        self.context = context
        self.settings = settings

    @abstractmethod
    def start(self, session: SparkSession, *, once: bool) -> StreamingQuery:
        """Start the streaming query of the job.

        Args:
            session: a session of this job alone: its temporary views and SQL settings are not shared.
            once: process the input that exists now, and end.

        Raises:
            ConfigurationError: the settings do not fit the topics or the session.
        """

    @classmethod
    def reads(cls, settings: Any) -> Sequence[str]:  # noqa: ARG003 - for subclasses
        """The topics whose records the job reads, by which a loop of jobs is found."""
        return ()

    @classmethod
    def reads_kafka(cls, settings: Any) -> Sequence[str]:  # noqa: ARG003 - for subclasses
        """The Kafka topics that the job reads by their own names."""
        return ()

    @classmethod
    def publishes(cls, settings: Any) -> Sequence[str]:  # noqa: ARG003 - for subclasses
        """The topics to which the job publishes."""
        return ()

    def run(self, stream: DataFrame | DataStreamWriter, *, once: bool) -> StreamingQuery:
        """Start a query under the name, the checkpoint and the trigger of the job."""
        writer = stream if isinstance(stream, DataStreamWriter) else stream.writeStream
        writer = writer.queryName(self.context.name).option("checkpointLocation", self.context.checkpoint)
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(self.settings.every * 1000)} milliseconds").start()


GROUP: Final = "sowstream.jobs"
"""The entry-point group of jobs in installed packages."""

_BUILT_IN: Final = {
    "archive": "spark_integration.pipeline.jobs.archive:Archive",
    "features": "spark_integration.pipeline.jobs.features:Features",
    "ingest": "spark_integration.pipeline.jobs.ingest:Ingest",
    "merge": "spark_integration.pipeline.jobs.merge:Merge",
    "table": "spark_integration.pipeline.jobs.table:Table",
}


def find_job(kind: str) -> type[Job[Any]]:
    """Load the class of a job.

    Args:
        kind: a built-in name, the name of an entry point, or `package.module:Class`.

    Raises:
        ConfigurationError: there is no such job, or it cannot be imported.
    """
    place = _BUILT_IN.get(kind, kind)
    if ":" not in place:
        if kind not in installed_names(GROUP):
            raise ConfigurationError(unknown_name("job", kind, sorted({*_BUILT_IN, *installed_names(GROUP)})))
        job = load_installed(find_installed(GROUP, "job", kind), "job")
    else:
        module, _, name = place.partition(":")
        try:
            job = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigurationError(f"job {kind!r} cannot be loaded: {error}; write package.module:Class") from error
    if not (isinstance(job, type) and issubclass(job, Job)):
        raise ConfigurationError(f"job {kind!r} is no subclass of {Job.__module__}.{Job.__name__}")
    return job
