"""A job of a pipeline: its settings and paths, its surroundings, the query that it starts, its class and identity."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

import structlog
from pydantic import AfterValidator, Field, ValidationInfo, model_validator
from pyspark.sql.streaming.readwriter import DataStreamWriter

from processor.config.section import IntervalS, Properties, Section
from processor.entry_points import find_installed, installed_names, load_installed
from processor.errors import ConfigurationError, Stop, unknown_name
from spark_integration.foundation.options import client_properties
from spark_integration.foundation.small_files import SmallFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from processor.config import Config
    from spark_integration.pipeline.monitor import MicroBatches


_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")

log = structlog.stdlib.get_logger("sowstream.spark")

IDENTITY_FILE: Final = "sowstream-job.json"
"""The name of the file with the identity, in the directory of the checkpoint."""

_PACE: Final = {"every", "kafka", "retries", "retry_delay", "retry_delay_max"}
"""Settings that change the pace or the connection and not the rows of a batch."""

_REMEDY: Final = "restore the file, or remove the whole directory of the checkpoint: then the job begins again"

_ROOM: Final = Path(__file__).parent.parent


class InputMissing(Stop):
    """The input of a job does not exist yet: the job waits for it, and other jobs go on."""

    def __init__(self, message: str, *, is_empty: bool = False) -> None:
        """Create it.

        Args:
            message: what is missing, and what creates it.
            is_empty: the place exists, and there is nothing in it: a run with `once` has nothing to do.
        """
        super().__init__(message)
        self.is_empty = is_empty


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
RETRIES: Final = 20
"""The default number of retries in a row; with the default pauses they take an hour and a quarter."""
_RETRY_DELAY_S: Final = 5.0
_RETRY_DELAY_MAX_S: Final = 300.0


class JobSettings(Section):
    """Base of the settings of a job: immutable, and an unknown key is an error."""

    job: str
    """The kind of the job: a built-in name, an entry point of `sowstream.jobs`, or `package.module:Class`."""
    every: IntervalS = Field(default=EVERY_S, ge=0)
    """Time between the starts of two micro-batches."""
    kafka: Properties = Field(default_factory=dict)
    """Kafka properties of this job alone, in librdkafka's or Java's names; they beat those of the pipeline."""
    retries: int = Field(default=RETRIES, ge=0, le=1_000_000)
    """Failures in a row after each of which the job is started again; 0: it is given up at once. A micro-batch that
    ends well begins a new count. With `--once` there are none.
    """
    retry_delay: IntervalS = Field(default=_RETRY_DELAY_S, gt=0, le=3600)
    """The pause before the first retry; each later one is twice as long."""
    retry_delay_max: IntervalS = Field(default=_RETRY_DELAY_MAX_S, gt=0, le=86_400)
    """The longest pause."""


SqlKind: TypeAlias = Literal["query", "expression"]
"""The kind of a text of SQL."""

SettingsT = TypeVar("SettingsT", bound=JobSettings)


@dataclass(frozen=True, slots=True)
class SqlScope:
    """The names that the SQL of a job can use."""

    views: Mapping[str, str | None]
    """The columns of each view as DDL, by its name; None: only its records show them. An expression is over the columns
    of `source`.
    """
    key: Sequence[str] = ()
    """The columns that the result of a query must have."""


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
    kafka: dict[str, str] = field(repr=False)
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
            InputMissing: the input does not exist yet; the job waits, and is started again later.
            ConfigurationError: the settings do not fit the topics or the session; the job is given up.
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

    @classmethod
    def source_roles(cls, settings: Any) -> Sequence[str]:  # noqa: ARG003 - for subclasses
        """The roles of the Kafka topics that it reads of each topic in `reads`."""
        return ("sow",)

    @classmethod
    def kafka_topics(cls, settings: Any, topics: Config) -> Sequence[str]:
        """The Kafka topics without which the job waits."""
        sources = [(topic, role) for topic in cls.reads(settings) for role in cls.source_roles(settings)]
        targets = [(topic, "publish") for topic in cls.publishes(settings)]
        names: Any = topics.kafka_names
        return [*cls.reads_kafka(settings), *(names.topic(topic, role) for topic, role in (*sources, *targets))]

    @classmethod
    def ddl(cls, settings: Any) -> Mapping[tuple[str, ...], str]:  # noqa: ARG003 - for subclasses
        """The columns that the settings name as DDL, by their place in them."""
        return {}

    @classmethod
    def sql(cls, settings: Any) -> Mapping[tuple[str, ...], tuple[SqlKind, str]]:  # noqa: ARG003 - for subclasses
        """The SQL in the settings, by its place in them: a query or an expression."""
        return {}

    @classmethod
    def sql_scope(cls, settings: Any) -> SqlScope | None:  # noqa: ARG003 - for subclasses
        """The names that this SQL can use; None: those of other tables and functions, too."""
        return None

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
        except ModuleNotFoundError as error:
            advice = "install it, or set PYTHONPATH to the directory it is in"
            raise ConfigurationError(f"job {kind!r} cannot be loaded: {error}; {advice}") from error
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigurationError(f"job {kind!r} cannot be loaded: {error}; write package.module:Class") from error
    if not (isinstance(job, type) and issubclass(job, Job)):
        raise ConfigurationError(f"job {kind!r} is no subclass of {Job.__module__}.{Job.__name__}")
    return job


def identify(name: str, kind: type[Job[Any]], settings: JobSettings, topics: Any, files: SmallFiles) -> JobIdentity:
    """Find the identity of a job, and begin a new epoch if its settings or its code have changed.

    Args:
        name: the name of the job.
        kind: its class.
        settings: its settings.
        topics: the settings of the topics that it uses, as a tree of plain values.
        files: the files in the directory of its checkpoint.

    Raises:
        ConfigurationError: the file with the identity is damaged or gone, or the checkpoint belongs to another job.
    """
    parts = {
        "settings": _digest(settings.model_dump_json(by_alias=True, exclude=_PACE)),
        "topics": _digest(json.dumps(topics, sort_keys=True, default=str)),
        "code": _code(kind),
        "version": version("sowstream"),
    }
    text = files.read(IDENTITY_FILE)
    if text is None and files.names("offsets"):
        raise ConfigurationError(
            f"{name}: its checkpoint has micro-batches, and {IDENTITY_FILE} in it is gone, by whose id repeated "
            f"rows are recognised; {_REMEDY}"
        )
    if text is None:
        identity, changed = JobIdentity(uuid.uuid4().hex[:12], 1), ["new"]
    else:
        identity, before = _read(name, text)
        changed = [part for part in parts if before.get(part) != parts[part]]
        if changed:
            identity = JobIdentity(identity.id, identity.epoch + 1)
            log.warning("changed since the last start: a new epoch begins", job=name, epoch=identity.epoch,
                        changed=", ".join(changed))  # fmt: skip
    if changed:
        content = {"job": name, "id": identity.id, "epoch": identity.epoch, **parts}
        files.write(IDENTITY_FILE, json.dumps(content, indent=1))
    return identity


def _read(name: str, text: str) -> tuple[JobIdentity, dict[str, str]]:
    try:
        content = json.loads(text)
        identity = JobIdentity(str(content["id"]), int(content["epoch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{name}: {IDENTITY_FILE} in its checkpoint is damaged: {error!r}; {_REMEDY}"
        ) from None
    if content.get("job") != name:
        raise ConfigurationError(
            f"{name}: its checkpoint belongs to the job {content.get('job')!r}; give each job its own directory"
        )
    return identity, content


def _code(kind: type[Job[Any]]) -> str:
    """A digest of the source files that a job's rows depend on."""
    module = sys.modules[kind.__module__]
    place = Path(module.__file__ or __file__)
    if place.is_relative_to(_ROOM):
        files: list[Path] = sorted(_sources())
    else:
        files = [place, *sorted(_sources())]
    return _digest("\n".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))


def _sources() -> Iterator[Path]:
    for room in ("pipeline", "publish", "tables"):
        yield from (_ROOM / room).rglob("*.py")
    yield from (_ROOM / "read" / "mask.py", _ROOM / "read" / "schemas" / "json_columns.py")
    yield _ROOM / "foundation" / "small_files.py"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
