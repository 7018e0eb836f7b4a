"""Checks the settings of jobs without Spark and Kafka: against those of topics and other jobs, and columns in DDL.

Spark's own parser of DDL runs in a JVM. The one here finds the usual slips, in names of types, brackets and commas; a
text with words that it does not know passes, as Spark has the last word. The types are those of
https://spark.apache.org/docs/4.0.0/sql-ref-datatypes.html.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, get_args

from processor.config.kafka_names import Role
from processor.errors import ConfigurationError
from spark_integration.foundation.settings import topic_settings
from spark_integration.foundation.small_files import without_scheme
from spark_integration.pipeline.job import Job, JobContext, JobSettings, Target

if TYPE_CHECKING:
    from processor.config import Config

SettingPlace: TypeAlias = tuple[str, ...]
"""The place of a setting in the section of its job, such as `("from", "path")`."""

_SIMPLE: Final = frozenset(
    ("boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double",
     "string", "binary", "date", "timestamp", "timestamp_ntz", "timestamp_ltz", "void", "variant", "interval")
)  # fmt: skip
_WITH_LENGTH: Final = frozenset(("char", "character", "varchar", "decimal", "dec", "numeric"))
_NESTED: Final = frozenset(("array", "map", "struct"))
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([\w.]+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(.))", re.DOTALL)
_AFTER_TYPE: Final = frozenset(("not", "null", "comment", "default", "collate", "generated"))
_DEPTH_MAX: Final = 100


def job_problems(
    name: str, kind: type[Job[Any]], settings: JobSettings, topics: Config, *, is_complete: bool = True
) -> list[tuple[SettingPlace, str]]:
    """The problems of a job, each with its place.

    Args:
        name: the name of the job.
        kind: its class.
        settings: its settings.
        topics: the settings of the topics.
        is_complete: false if settings were left out; then only those that are there are checked, one by one.
    """
    problems = list(_topic_problems(kind, settings, topics))
    for place, text in kind.ddl(settings).items():
        if (wrong := ddl_problem(text)) is not None:
            problems.append((place, f"no DDL such as `id LONG, name STRING`: {wrong}"))
    if not problems and is_complete:
        # A job checks its settings when it is created, and uses its surroundings when it is started.
        nothing: Any = None
        context = JobContext(name, topics, {}, "", nothing, nothing, nothing)
        try:
            kind(context, settings)
        except ConfigurationError as error:
            problems.append(((), str(error).removeprefix(f"{name}: ")))
    return problems


def _topic_problems(kind: type[Job[Any]], settings: JobSettings, topics: Config) -> Iterator[tuple[SettingPlace, str]]:
    """The topics that do not exist in the settings."""
    for topic in dict.fromkeys((*kind.reads(settings), *kind.publishes(settings))):
        try:
            topic_settings(topic, topics, needs_sow=False)
        except ConfigurationError as error:
            yield _place_of(topic, settings), str(error)


def _place_of(topic: str, settings: JobSettings) -> SettingPlace:
    """The setting that names a topic."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if value == topic or (isinstance(value, tuple) and topic in value):
            return (field.alias or name,)
    return ()


def shared_tables(jobs: Mapping[str, JobSettings]) -> Iterator[tuple[SettingPlace, str]]:
    """The tables that two jobs would write, each with its place below `jobs`; archives of other topics may share one.

    Args:
        jobs: the settings of the jobs, by name.
    """
    owners: dict[str, list[str]] = {}
    for name, settings in jobs.items():
        target = getattr(settings, "to", None)
        if not isinstance(target, Target):
            continue
        place = (name, "to", "path" if target.table is None else "table")
        others = owners.setdefault(target.place, [])
        for owner in others:
            if not jobs[owner].job == settings.job == "archive":
                yield place, f"job {owner!r} writes there too; give each a place of its own"
                break
            if same := _archived(settings) & _archived(jobs[owner]):
                topic = ".".join(min(same))
                yield place, f"job {owner!r} archives {topic} there too, and each record would be there twice"
                break
        others.append(name)


def _archived(settings: Any) -> set[tuple[str, str]]:
    return {(topic, role) for topic in settings.topics for role in settings.roles}


def inputs_that_jobs_write(jobs: Mapping[str, JobSettings], checkpoints: str) -> Iterator[tuple[SettingPlace, str]]:
    """The directories of files to ingest below which a job would write files, each with its place below `jobs`.

    Args:
        jobs: the settings of the jobs, by name.
        checkpoints: the directory of the checkpoints.
    """
    written: list[tuple[str, str]] = [("the checkpoints", checkpoints)]
    for name, settings in jobs.items():
        for word, path in (
            ("quarantine", getattr(settings, "quarantine", None)),
            ("table", getattr(getattr(settings, "to", None), "path", None)),
        ):
            if path is not None:
                written.append((f"the {word} of {name!r}", path))
    for name, settings in jobs.items():
        source = getattr(getattr(settings, "source", None), "path", None)
        for what, path in written:
            if source is not None and _is_below(path, source):
                yield (
                    (name, "from", "path"),
                    f"{what}, {path}, is below it and would be read as input; give a place elsewhere",
                )


def _is_below(path: str, source: str) -> bool:
    """Return whether Spark reads a path as a part of a source, whose names may have wildcards."""
    parts, wanted = (PurePosixPath(without_scheme(one)).parts for one in (path, source))
    # Spark takes no file or directory whose name begins so.
    hidden = any(part.startswith(("_", ".")) for part in parts[len(wanted) :])
    return len(parts) >= len(wanted) and not hidden and all(map(fnmatchcase, parts, wanted))


class Flow(NamedTuple):
    """The topics between which a job moves records."""

    sources: Sequence[str]
    """The topics that it reads."""
    kafka_sources: Sequence[str]
    """The Kafka topics that it reads by their own names, perhaps of no topic of the settings."""
    targets: Sequence[str]
    """The topics to which it publishes."""


def refuse_loops(topics: Config, jobs: Mapping[str, Flow]) -> None:
    """Make sure that no topic is computed from itself, over any number of jobs, copies and views.

    Args:
        topics: the settings of the topics; a copy is computed from its underlying topic, a view from its inputs.
        jobs: by name, the topics of a job.

    Raises:
        ConfigurationError: a topic is; the message has the way.
    """
    ways: dict[str, list[tuple[str, str]]] = {}
    owners = {topics.kafka_names.topic(name, role): name for name in topics.names for role in get_args(Role)}
    for name, flow in jobs.items():
        for source in (*flow.sources, *(owners[kafka] for kafka in flow.kafka_sources if kafka in owners)):
            ways.setdefault(source, []).extend((target, name) for target in flow.targets)
    for name, view in topics.views.items():
        for source in view.inputs:
            ways.setdefault(source, []).append((name, ""))
    for copy in (*topics.conflated, *topics.processors):
        underlying = topics.underlying(copy)
        if underlying is not None:
            ways.setdefault(underlying, []).append((copy, ""))
    for topic in ways:
        way = _way(topic, topic, ways, [topic], set())
        if way is not None:
            raise ConfigurationError(
                f"the jobs go in a circle: {' → '.join(way)}; each change of {topic} would cause the next one: publish "
                "to another topic"
            )


def _way(
    topic: str, goal: str, ways: Mapping[str, list[tuple[str, str]]], path: list[str], seen: set[str]
) -> list[str] | None:
    """The steps from a topic to the goal; None if there are none."""
    for target, job in ways.get(topic, ()):
        step = [*path, f"({job})", target] if job else [*path, target]
        if target == goal:
            return step
        if target not in seen:
            seen.add(target)
            if (way := _way(target, goal, ways, step, seen)) is not None:
                return way
    return None


class _Wrong(Exception):
    """The text is no DDL; the message has the reason."""


def ddl_problem(text: str) -> str | None:
    """The problem of a text that cannot be columns; None where it can."""
    try:
        reader = _Reader(text)
        reader.fields("", depth=0)
    except _Wrong as wrong:
        return str(wrong)
    return None


class _Reader:
    """Reads the words of a text from left to right."""

    def __init__(self, text: str) -> None:
        self._words = [next(filter(None, match.groups())) for match in _TOKEN.finditer(text.strip())]
        self._at = 0

    def fields(self, end: str, *, depth: int) -> None:
        """Read fields up to a closing bracket, or to the end of the text."""
        while True:
            name = self._next()
            if name == "" or name in "<>,:()":
                raise _Wrong(f"expected the name of a column, found {name or 'the end'!r}")
            if self._peek() == ":":
                self._at += 1
            elif end and self._peek() in (",", end):
                raise _Wrong(f"column {name!r} has no type")
            self._type(name, depth)
            self._rest_of_field()
            word = self._next()
            if word == end:
                return
            if word != ",":
                raise _Wrong(f"expected a comma after column {name!r}, found {word or 'the end'!r}")

    def _type(self, name: str, depth: int) -> None:
        if depth > _DEPTH_MAX:
            raise _Wrong(f"column {name!r} is nested deeper than {_DEPTH_MAX} types")
        word = self._next()
        kind = word.lower()
        if word == "" or word in ",>":
            raise _Wrong(f"column {name!r} has no type, such as {name} STRING")
        if kind in _NESTED:
            self._expect("<", f"the type {word} of column {name!r} has types in angle brackets")
            if kind == "struct":
                if self._peek() == ">":
                    self._at += 1
                else:
                    self.fields(">", depth=depth + 1)
                return
            self._type(name, depth + 1)
            if kind == "map":
                self._expect(",", f"the type {word} of column {name!r} has two types")
                self._type(name, depth + 1)
            self._expect(">", f"the type {word} of column {name!r} is not closed by >")
        elif kind not in _SIMPLE and kind not in _WITH_LENGTH:
            close = difflib.get_close_matches(kind, sorted(_SIMPLE | _WITH_LENGTH | _NESTED), n=1)
            hint = f"; did you mean {close[0].upper()!r}?" if close else ""
            raise _Wrong(f"column {name!r}: there is no type {word!r}{hint}")
        elif self._peek() == "(":
            while (part := self._next()) != ")":
                if part == "":
                    raise _Wrong(f"the type {word} of column {name!r} is not closed by )")
        elif kind == "interval":
            while self._peek().lower() in ("year", "month", "day", "hour", "minute", "second", "to"):
                self._at += 1

    def _rest_of_field(self) -> None:
        """Skip NOT NULL, COMMENT and words that Spark may know."""
        if self._peek().lower() in _AFTER_TYPE:
            while self._peek() not in ("", ",", ">"):
                self._at += 1

    def _expect(self, word: str, wrong: str) -> None:
        if self._next() != word:
            raise _Wrong(wrong)

    def _peek(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _next(self) -> str:
        word = self._peek()
        self._at += 1
        return word
