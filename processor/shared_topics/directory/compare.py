"""Compares settings with the topic directory: a contradiction is a problem with both values and the remedy. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from processor.topics import Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from processor.shared_topics.directory.directory import DirectoryEntries
    from processor.wire.topic_description import Description

_REFUSED: Final = frozenset(
    ("key", "message_type", "partitions", "separator", "parts", "key_format", "derived_from", "kafka_topics")
)
"""Fields in which a worker and its readers must agree: otherwise records have other keys or cannot be decoded."""

_SHOWN_CHARACTERS: Final = 60


class Difference(NamedTuple):
    """One field in which the settings and the directory differ."""

    field: str
    """The field of the description, by the name it has in the directory."""
    configured: Any
    """The value that follows from the settings."""
    described: Any
    """The value in the directory."""

    def __str__(self) -> str:
        """`key was /id, is /sku`."""
        configured, described = self.shown()
        return f"{self.field} was {described}, is {configured}"

    @property
    def severity(self) -> Literal["refuse", "warn"]:
        """`refuse` if no worker starts with it."""
        return "refuse" if self.field in _REFUSED else "warn"

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
    return [
        Difference(field, value, theirs[field])
        for field, value in ours.items()
        if value != theirs[field] and field != "format"
    ]


def contradictions(
    configured: Mapping[str, Description],
    entries: DirectoryEntries,
    names: Iterable[str],
    *,
    ignored: Collection[str] = (),
) -> list[Problem]:
    """All differences between settings and directory, as problems.

    A topic without a description is no problem: it was applied before there was a directory.

    Args:
        configured: the descriptions that follow from the settings.
        entries: the directory.
        names: the topics that are compared.
        ignored: fields that are not compared.
    """
    problems = []
    for name in names:
        if name in entries.unreadable:
            problems.append(Problem("warn", name, "is not compared with the topic directory", entries.unreadable[name]))
        elif name in entries.descriptions:
            fields = differences(configured[name], entries.descriptions[name])
            problems += [_problem(name, difference) for difference in fields if difference.field not in ignored]
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
