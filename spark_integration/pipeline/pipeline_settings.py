"""Reads `pipeline.yaml`: the topics' settings, the place of the checkpoints, and the jobs."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import yaml
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from processor.config import Config
from processor.config import load as load_topics
from processor.config.section import Environment, Properties
from processor.config.suggestions import explain
from processor.config.yaml_values import parse, problem_of
from processor.errors import ConfigurationError, unknown_name
from spark_integration.foundation.options import with_connection
from spark_integration.pipeline.job import Job, JobSettings, find_job, located
from spark_integration.pipeline.offline_check import (
    Flow,
    inputs_that_jobs_write,
    job_problems,
    refuse_loops,
    shared_tables,
)

DEFAULT_FILE: Final = Path("pipeline.yaml")

JobName: TypeAlias = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,60}$")]
"""The name of a job: also that of its query, its checkpoint, and a part of its client names."""

_LINE: Final = re.compile(r"line (\d+): ")
"""The beginning of a problem whose line is known."""

Place: TypeAlias = tuple[str | int, ...]
"""A path of keys and positions in the file."""


class PipelineFile(BaseSettings):
    """The settings at the top of the file. The environment, `SOWSTREAM_PIPELINE__<KEY>`, has priority over the file."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="SOWSTREAM_PIPELINE__",
        env_nested_delimiter="__",
    )

    settings: Path = Path("sowstream.yaml")
    """The settings of the topics."""
    checkpoints: str = "checkpoints"
    """The directory of the checkpoints, one for each job, on any file system that Spark knows."""
    kafka: Properties = Field(default_factory=dict)
    """Kafka properties for Spark, in librdkafka's or Java's names; they beat those of the topics' settings."""
    spark: Properties = Field(default_factory=dict)
    """Settings of the Spark session."""
    spark_log: str | None = None
    """The file for the output of Spark itself; none: `spark.log` next to this file, or standard error where that
    directory cannot be written. `-`: standard error.
    """
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """The port of the Prometheus metrics; 0: any free one; none: they are not served."""
    metrics_host: str = ""
    """The address of that port, such as 127.0.0.1; empty: every address, of IPv6 too."""
    jobs: dict[JobName, dict[str, Any]] = Field(default_factory=dict)
    """The jobs, by name."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Give the environment priority over the file, which is passed as arguments."""
        return Environment(settings_cls, init_settings()), init_settings


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """A job of the file: its class and its settings."""

    name: str
    """The name of the job."""
    kind: type[Job[Any]]
    """The class."""
    settings: JobSettings
    """The settings, of the class' `settings_type`."""

    @property
    def flow(self) -> Flow:
        """The topics between which it moves records."""
        kind, settings = self.kind, self.settings
        return Flow(kind.reads(settings), kind.reads_kafka(settings), kind.publishes(settings))


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """A pipeline as its file describes it, checked."""

    file: Path
    """The file."""
    topics: Config
    """The settings of the topics."""
    checkpoints: str
    """The directory of the checkpoints."""
    kafka: Mapping[str, str] = field(repr=False)
    """Kafka properties for Spark, as written."""
    spark: Mapping[str, str] = field(repr=False)
    """Settings of the Spark session."""
    spark_log: str | None
    """The file for the output of Spark itself, see `spark_integration.cli.spark_log`."""
    metrics_port: int | None
    """The port of the metrics; None: they are not served."""
    metrics_host: str
    """The address of that port; empty: every address."""
    jobs: Mapping[str, PipelineJob]
    """The jobs, by name, in the order of the file."""
    text: str = field(default="", repr=False)
    """The text of the file, in which settings have their lines."""

    @classmethod
    def load(cls, path: Path | str | None = None) -> PipelineSettings:
        """Read the file.

        Args:
            path: the file; None: `./pipeline.yaml`.

        Raises:
            ConfigurationError: the file is missing or not YAML, or a setting is wrong; one line for each, with the
                line of the file and, for an unknown name, the closest one.
        """
        file = DEFAULT_FILE if path is None else Path(path)
        text = _text(file)
        tree = _tree(file, text)
        lines = _Lines(text)
        top = _top(file, tree, lines)
        home = file.resolve().parent
        jobs, wrong = _jobs(home, top.jobs, lines)
        problems = [problem for own in wrong.values() for problem in own]
        try:
            topics = load_topics(home / top.settings, file_argument=f"`settings: FILE` in {file}")
        except ConfigurationError as error:
            if not problems:
                raise
            raise _refusal(file, [*problems, str(error)]) from None
        others = [
            ((job.name, *place), problem)
            for job in jobs.values()
            for place, problem in job_problems(
                job.name, job.kind, job.settings, topics, is_complete=job.name not in wrong
            )
        ]
        settings, checkpoints = {name: job.settings for name, job in jobs.items()}, located(top.checkpoints, home)
        for place, problem in (*others, *shared_tables(settings), *inputs_that_jobs_write(settings, checkpoints)):
            problems.append(f"{lines.of(('jobs', *place))}{'.'.join(('jobs', *place))}: {problem}")
        if problems:
            raise _refusal(file, problems)
        refuse_loops(topics, {name: job.flow for name, job in jobs.items()})
        return cls(
            file=file,
            topics=topics,
            checkpoints=checkpoints,
            kafka=top.kafka,
            spark=top.spark,
            spark_log=top.spark_log if top.spark_log in (None, "-") else located(str(top.spark_log), home),
            metrics_port=top.metrics_port,
            metrics_host=top.metrics_host,
            jobs=jobs,
            text=text,
        )

    def place(self, job: str, *setting: str) -> str:
        """The place of a setting of a job, with its line: `line 7: jobs.book.to.path`."""
        return self.place_at_top("jobs", job, *setting)

    def place_at_top(self, *setting: str) -> str:
        """The place of a setting of the file; one of the environment has no line."""
        return f"{_Lines(self.text).of(setting)}{'.'.join(setting)}"

    def checkpoint(self, name: str) -> str:
        """The directory of a job's checkpoint."""
        return f"{self.checkpoints}/{name}"

    def spark_kafka(self, own: Mapping[str, str] | None = None) -> dict[str, str]:
        """The options of Spark's Kafka source and sink: of the topics' settings, of the pipeline, of one job.

        Raises:
            ConfigurationError: a property cannot be translated for Spark's client, which is Java's.
        """
        named = {
            f"kafka.{name.removeprefix('kafka.')}": text for name, text in (dict(self.kafka) | dict(own or {})).items()
        }
        return dict(with_connection(named, self.topics.kafka))

    def chosen(self, names: list[str] | None) -> list[PipelineJob]:
        """The jobs of these names; all of them where no name is given.

        Raises:
            ConfigurationError: a job does not exist, or there are none at all.
        """
        for name in names or ():
            if name not in self.jobs:
                raise ConfigurationError(unknown_name("job", name, list(self.jobs)))
        if not self.jobs:
            raise ConfigurationError(f"{self.file} has no jobs; write them below `jobs:`")
        return [job for name, job in self.jobs.items() if not names or name in names]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}; name the pipeline's file with -c FILE") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: not UTF-8 text, from byte {error.start} on") from None


def _tree(file: Path, text: str) -> dict[str, Any]:
    try:
        tree = parse(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{file}: {problem_of(error)}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(name, str) for name in tree):
        raise ConfigurationError(f"{file}: expected settings such as `jobs:` at the top level")
    return tree


def _top(file: Path, tree: dict[str, Any], lines: _Lines) -> PipelineFile:
    try:
        return PipelineFile(**tree)
    except ValidationError as error:
        raise _refusal(file, _problems(error, PipelineFile, (), lines)) from None
    except SettingsError as error:
        raise ConfigurationError(
            f"the environment: {error}; a section is written as JSON, one setting as SOWSTREAM_PIPELINE__<KEY>"
        ) from None


def _jobs(
    home: Path, sections: dict[str, dict[str, Any]], lines: _Lines
) -> tuple[dict[str, PipelineJob], dict[str, list[str]]]:
    """Check all jobs, so that one error does not hide others: the jobs, and the problems by the name of the job.

    A job with problems is there too, with its other settings, where these can be used alone.
    """
    jobs, problems = {}, {}
    for name, section in sections.items():
        job, wrong = _job(home, name, section, lines)
        if job is not None:
            jobs[name] = job
        if wrong:
            problems[name] = wrong
    return jobs, problems


def _job(
    home: Path, name: str, section: dict[str, Any], lines: _Lines
) -> tuple[PipelineJob, list[str]] | tuple[None, list[str]]:
    """A job with the settings that can be used, and its problems."""
    at: Place = ("jobs", name)
    if not isinstance(section.get("job"), str):
        return None, [f"{lines.of(at)}jobs.{name}.job: missing; write the kind, such as job: ingest"]
    try:
        kind = find_job(section["job"])
    except ConfigurationError as error:
        return None, [f"{lines.of((*at, 'job'))}jobs.{name}.job: {error}"]
    model, context = kind.settings_type, {"home": home}
    try:
        return PipelineJob(name, kind, model.model_validate(section, context=context)), []
    except ValidationError as error:
        problems = _problems(error, model, at, lines)
        rest = _without(section, [detail["loc"] for detail in error.errors(include_url=False)])
    try:
        return PipelineJob(name, kind, model.model_validate(rest, context=context)), problems
    except ValidationError:
        return None, problems


def _without(section: dict[str, Any], places: Sequence[Place]) -> dict[str, Any]:
    """A copy of a section without the settings at some places."""
    rest = copy.deepcopy(section)
    for place in places:
        inner: Any = rest
        for part in place[:-1]:
            if not isinstance(inner.get(part), dict):
                inner.pop(part, None)
                break
            inner = inner[part]
        else:
            inner.pop(place[-1], None)
    return rest


def _problems(error: ValidationError, model: Any, at: Place, lines: _Lines) -> list[str]:
    """A line for each error of a model, each with its line in the file."""
    texts = explain(error, model, ".".join(map(str, at))).splitlines()
    details = error.errors(include_url=False)
    if len(texts) == len(details):
        texts = [_with_guess(text, detail) for text, detail in zip(texts, details, strict=True)]
    places = [lines.of((*at, *detail["loc"])) for detail in error.errors(include_url=False)]
    if len(texts) != len(places):  # An error of several lines.
        return [text.strip() for text in texts]
    return [f"{place}{text.strip()}" for place, text in zip(places, texts, strict=True)]


def _with_guess(text: str, detail: Any) -> str:
    """A problem, with the closest of the values that a setting can have."""
    if detail["type"] != "literal_error" or not isinstance(detail["input"], str):
        return text
    values = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
    place = text.partition(":")[0]
    return f"{place}: {unknown_name(str(detail['loc'][-1]), detail['input'], values)}"


def _refusal(file: Path, problems: list[str]) -> ConfigurationError:
    """An error with a line for each problem, in the order of the file."""

    def line_of(problem: str) -> int:
        number = _LINE.match(problem)
        return 0 if number is None else int(number[1])

    return ConfigurationError("\n  ".join([f"{file}: settings that cannot be used:", *sorted(problems, key=line_of)]))


class _Lines:
    """The line of each setting in the text of a file."""

    def __init__(self, text: str) -> None:
        self._root = yaml.compose(text, yaml.SafeLoader)

    def of(self, place: Place) -> str:
        """The text `line 7: ` of the deepest setting on the way to a place; empty without one."""
        node, line = self._root, None
        for part in place:
            inner = _inner(node, part)
            if inner is None:
                break
            node, line = inner
        return "" if line is None else f"line {line}: "


def _inner(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, int] | None:
    """The value of a key or a position, and the line where it is named."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return value, key.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    return None
