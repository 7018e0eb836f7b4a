"""Compares settings with the topic directory: contradictions and their remedies, and the descriptions to be written."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from processor.config import SchemaConfig
from processor.config.kafka_names import KafkaNames
from processor.errors import Stop
from processor.installation.configured_pipelines import pipeline_of
from processor.installation.topic_directory import TopicDirectory
from processor.topics import Problem, directory_problems, rebuild_steps
from processor.wire.topic_description import describe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from processor.config import Config
    from processor.installation.topic_directory import DirectoryEntries
    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.connection import Cluster
    from processor.wire.topic_description import Description

log = logging.getLogger("sowstream.client")

_READER_TIMEOUT_S: Final = 5.0
_UNFOUND: Final = "updates would not find them"
_UNREADABLE: Final = "they are written in the former way"
_REFUSED: Final = {
    "key": _UNFOUND, "key_format": _UNFOUND, "partitions": "keys do not move with the number",
    "message_type": _UNREADABLE, "separator": _UNREADABLE, "parts": _UNREADABLE,
    "schema": _UNREADABLE, "registry": _UNREADABLE,
    "derived_from": "they are made of the former topic", "kafka_topics": "they would be left there",
    "sow": "they would miss what is published meanwhile",
}  # fmt: skip
"""Fields in which a worker and its readers must agree, with the consequence of another value for the present records.

Of `schema` and `registry` only a change that leaves messages unreadable, see `Description.encoding`; of `sow` only
false in place of true.
"""

_SHOWN_CHARACTERS: Final = 60


class Difference(NamedTuple):
    """One field in which the settings and the directory differ."""

    field: str
    """The field of the description, by the name it has in the directory."""
    configured: Any
    """The value that follows from the settings."""
    described: Any
    """The value in the directory."""
    severity: Literal["refuse", "warn"]
    """`refuse`: no worker starts with it, and a topic with records keeps the value of the directory."""

    def __str__(self) -> str:
        """`key was /id, is /sku`."""
        configured, described = self.shown()
        return f"{self.field} was {described}, is {configured}"

    def shown(self) -> tuple[str, str]:
        """Both values as text for people, long texts reduced to the part that differs."""
        configured, described = _shown(self.configured), _shown(self.described)
        if max(len(configured), len(described)) <= _SHOWN_CHARACTERS:
            return configured, described
        same = 0
        while same < min(len(configured), len(described)) and configured[same] == described[same]:
            same += 1
        return _cut(configured, same), _cut(described, same)


def differences(configured: Description, described: Description) -> list[Difference]:
    """The fields in which two descriptions of one topic differ, in the order of the description."""
    ours, theirs = configured.model_dump(by_alias=True), described.model_dump(by_alias=True)
    fields = [field for field, value in ours.items() if value != theirs[field] and field != "format"]
    harmless = {"schema", "registry"} | ({"sow"} if configured.sow else set())
    if configured.encoding != described.encoding:
        harmless.remove("schema" if "schema" in fields else "registry")
    elif "schema" in fields and (found := _contradiction(configured, described)) is not None:
        harmless.remove("schema")
        theirs["schema"], ours["schema"] = found
    return [
        Difference(
            field, ours[field], theirs[field], "refuse" if field in _REFUSED and field not in harmless else "warn"
        )
        for field in fields
    ]


def _contradiction(configured: Description, described: Description) -> tuple[str, str] | None:
    """The first field that messages of the described protobuf schema have otherwise, as both schemas declare it."""
    schemas = described.record_schema, configured.record_schema
    if "protobuf" not in (configured.message_type, *configured.parts):
        return None
    if not all(each is not None and each.message and (each.text or each.base64) for each in schemas):
        return None
    from processor.codec.protobuf.codec import contradiction  # noqa: PLC0415 - of an extra

    former, present = (SchemaConfig(**each.model_dump()) for each in schemas if each is not None)
    return contradiction(former, present)


class DescribedRecords:
    """The records of the topics of the directory, which settle a part of each description. One thread only."""

    def __init__(self, config: Config, admin: Admin, entries: DirectoryEntries) -> None:
        """Set up without a request.

        Args:
            config: the settings.
            admin: administration of the cluster.
            entries: the directory.
        """
        self.config = config
        """The settings."""
        self._admin = admin
        self._entries = entries

    def settling(self, name: str) -> str:
        """The records that the settings of a topic would make unusable, as words for people; empty if there are none.

        Rows of a view are not among them: `sowstream view rebuild` writes them again. A topic that is derived from one
        with such records stays as it is, too. Where Kafka gives no answer, there may be records.
        """
        described = self._entries.descriptions.get(name)
        if described is None:
            return ""
        configured = describe(self.config, [name])[name]
        refused = {each.field for each in differences(configured, described) if each.severity == "refuse"}
        if not refused:
            return ""
        names = KafkaNames(self.config.topic_prefix, {name: described.kafka_topics})  # type: ignore[dict-item]
        # Of a topic that does not exist, a user with the rights of `topics apply` learns nothing.
        roles = {"publish", "sow"}.intersection(pipeline_of(self.config, name).roles)
        topics = {role: names.topic(name, role) for role in sorted(roles)}
        if configured.kind == "view" or refused == {"kafka_topics"}:
            ours = self.config.kafka_names
            topics = {role: topic for role, topic in topics.items() if topic != ours.topic(name, role)}
        try:
            filled = [topic for topic in topics.values() if self._has_records(topic)]
        except Stop as error:
            return f"it cannot be seen whether it has records ({error})"
        if filled:
            return f"{' and '.join(filled)} {'has' if len(filled) == 1 else 'have'} records"
        return self.settling(configured.derived_from) if configured.derived_from else ""

    def _has_records(self, topic: str) -> bool:
        """Return whether a Kafka topic has records; markers of transactions and tombstones count as such."""
        numbers = range(self._admin.partitions_of(topic) or 0)
        return self._admin.end_offsets(topic, numbers, kind="oldest") != self._admin.end_offsets(topic, numbers)


def contradictions(
    configured: Mapping[str, Description],
    entries: DirectoryEntries,
    names: Iterable[str],
    *,
    records: DescribedRecords | None = None,
    ignored: Collection[str] = (),
) -> list[Problem]:
    """All differences between settings and directory, as problems.

    A topic without a description is no problem: it was applied before there was a directory.

    Args:
        configured: the descriptions that follow from the settings.
        entries: the directory.
        names: the topics that are compared.
        records: the records of the topics; None: they are not asked for, as by readers.
        ignored: fields that are not compared.
    """
    problems = []
    for name in names:
        if name in entries.unreadable:
            problems.append(Problem("warn", name, "is not compared with the topic directory", entries.unreadable[name]))
        elif name in entries.descriptions:
            settled = "" if records is None else records.settling(name)
            problems += [
                _problem(name, each)
                if records is None or not settled or each.severity == "warn"
                else _refusal(records.config, name, each, settled)
                for each in differences(configured[name], entries.descriptions[name])
                if each.field not in ignored
            ]
    return problems


def _problem(name: str, difference: Difference) -> Problem:
    ours, theirs = difference.shown()
    field = difference.field
    if field == "application_id":
        return Problem(
            "warn",
            name,
            f"application_id is {ours} in the settings and {theirs} in the topic directory",
            f"rename the topic if {theirs} still writes it; if the application was renamed, sowstream topics apply",
        )
    return Problem(
        difference.severity,
        name,
        f"{field} is {ours} in the settings and {theirs} in the topic directory, which readers go by",
        f"sowstream topics apply if the settings are right; correct {field} in the settings if the directory is",
    )


def _refusal(config: Config, name: str, difference: Difference, settled: str) -> Problem:
    """The problem of a change that the records of a topic do not allow."""
    ours, theirs = difference.shown()
    field, names, underlying = difference.field, config.kafka_names, config.underlying(name)
    what = f"{field} is {ours} in the settings and {theirs} in the topic directory; {settled}: {_REFUSED[field]}"
    if name in config.views:
        way = f"do what {underlying} needs first"
    elif underlying is not None:
        way = rebuild_steps(name, names.topic(underlying, "sow"), names)
    elif field == "partitions":
        new = f"{name}_{ours}: {{partitions: {ours}, moved_from: {name}}}"
        way = f"configure a topic of a new name, `{new}`, run sowstream topics apply, and sowstream reshard {name}"
    else:
        way = (
            f"configure a topic of a new name, such as `{name}_2`, with this {field}, run sowstream topics apply, and "
            f"publish the records of {name} to it; or, if they are not needed, delete the topics "
            f"{names.family_text(name)} and run sowstream topics apply"
        )
    return Problem("refuse", name, what, f"set {field} back; or {way}")


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict) and not value:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {item}" for name, item in value.items() if item is not None)
    return repr(value) if isinstance(value, str) and not value.isprintable() else str(value)


def _cut(text: str, at: int) -> str:
    """The part of a text around a place."""
    begin = max(0, at - _SHOWN_CHARACTERS // 3)
    end = begin + _SHOWN_CHARACTERS
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"


def check_at_start(config: Config, admin: Admin, names: Iterable[str]) -> list[Problem]:
    """The contradictions between the directory and the settings of topics that a worker is about to write.

    A cluster without a directory has none. A directory that cannot be read is a warning: it must not keep a worker from
    starting.

    Args:
        config: the settings.
        admin: administration of the cluster.
        names: the topics.
    """
    directory = TopicDirectory(config.kafka, admin, prefix=config.topic_prefix)
    try:
        entries = directory.read()
    except Stop as error:
        return [_unread(directory, error)]
    topics = list(names)
    if entries is None:
        return []
    return contradictions(describe(config, topics), entries, topics, records=DescribedRecords(config, admin, entries))


def warn_of_contradictions(config: Config, admin: Admin, cluster: Cluster) -> None:
    """Log contradictions between the directory and the settings of a reader, which are used all the same.

    A directory that cannot be read or compared is ignored: a reader with settings does not depend on it.
    """
    directory = TopicDirectory(config.kafka, admin, prefix=config.topic_prefix)
    if directory.topic not in cluster.topics:
        return
    try:
        entries = directory.read(_READER_TIMEOUT_S)
        if entries is None:
            return
        configured = describe(config)
    except Stop as error:
        log.debug("the settings are not compared with the topic directory: %s", error)
        return
    # A reader may have an application_id of its own: it is only the first part of its consumer groups' names.
    for problem in contradictions(configured, entries, configured, ignored=("application_id",)):
        log.warning("topic %s; the settings are used", problem)


def report(config: Config, admin: Admin, cluster: Cluster) -> list[Problem]:
    """All problems of the directory.

    Raises:
        ConfigurationError: a schema file cannot be read.
    """
    directory = TopicDirectory(config.kafka, admin, prefix=config.topic_prefix)
    configured = describe(config)
    try:
        actual = directory.describe()
        problems = directory_problems(directory.spec, actual, brokers=len(cluster.brokers))
        entries = None if actual is not None and actual.lacks == "Describe" else directory.read()
    except Stop as error:
        return [_unread(directory, error)]
    if entries is None:
        return problems
    described = entries.descriptions.keys() | entries.unreadable.keys()
    problems += [
        Problem("warn", name, "is not described in the topic directory", "sowstream topics apply")
        for name in configured
        if name not in described
    ]
    records = DescribedRecords(config, admin, entries)
    problems += contradictions(configured, entries, configured, records=records)
    if gone := stale(config, entries, configured):
        are, them = ("is", "it") if len(gone) == 1 else ("are", "them")
        owner = f"application_id {config.application_id}"
        problem = f"{are} in the topic directory for {owner}, and the settings do not have {them}"
        to_do = f"sowstream topics apply --prune if no other settings file has {them}"
        problems.append(Problem("warn", ", ".join(gone), problem, to_do))
    return problems


def stale(config: Config, entries: DirectoryEntries, configured: Iterable[str]) -> list[str]:
    """Topics that the directory describes for this application and that are missing in the settings."""
    names = set(configured)
    return sorted(
        name
        for name, description in entries.descriptions.items()
        if description.application_id == config.application_id and name not in names
    )


def _unread(directory: TopicDirectory, error: Stop) -> Problem:
    return Problem(
        "warn",
        directory.topic,
        f"cannot be read, so the settings are not compared with it: {error}",
        "sowstream topics apply --acls prints who needs which rights",
    )


class Revision(NamedTuple):
    """The descriptions to be written to the directory."""

    writes: dict[str, Description | None]
    """Descriptions by topic; None removes one."""
    lines: list[str]
    """A line for people about each of them, and about each that stays as it is."""


def revise(
    config: Config,
    configured: Mapping[str, Description],
    entries: DirectoryEntries | None,
    *,
    kept: Mapping[str, str] = MappingProxyType({}),
    prune: bool = False,
) -> Revision:
    """Compare the descriptions of all configured topics with the directory.

    Topics of other applications are left alone, and so are those that only another settings file of this application
    may have, unless they are to be pruned.

    Args:
        config: the settings.
        configured: the descriptions that follow from them.
        entries: the directory; None: there was none.
        kept: topics whose description is not touched, with the reason.
        prune: whether to remove descriptions of this application that the settings do not have.
    """
    described = {} if entries is None else entries.descriptions
    writes: dict[str, Description | None] = {}
    lines = []
    for name, description in configured.items():
        if name in kept:
            lines.append(f"{name}: not described, as {kept[name]}.")
        elif name in described:
            if changed := differences(description, described[name]):
                writes[name] = description
                lines.append(f"{name}: description changed: {'; '.join(map(str, changed))}.")
        elif entries is not None and name in entries.newer:
            lines.append(f"{name}: not described: {entries.unreadable[name]}.")
        else:
            writes[name] = description
            lines.append(f"{name}: described in the topic directory.")
    if prune and entries is not None:
        for name in stale(config, entries, configured):
            writes[name] = None
            lines.append(f"{name}: removed from the topic directory.")
    return Revision(writes, lines)
