"""Decides which descriptions `topics apply` writes to the topic directory: new and changed ones. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from processor.shared_topics.directory.compare import differences
from processor.shared_topics.directory.report import stale

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from processor.config import Config
    from processor.shared_topics.directory.directory import DirectoryEntries
    from processor.wire.topic_description import Description


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
    kept: Collection[str] = (),
    prune: bool = False,
) -> Revision:
    """Compare the descriptions of all configured topics with the directory.

    Topics of other applications are left alone, and so are those that only another settings file of this application
    may have, unless they are to be pruned.

    Args:
        config: the settings.
        configured: the descriptions that follow from them.
        entries: the directory; None: there was none.
        kept: topics whose description is not touched, because their Kafka topics differ from the settings.
        prune: whether to remove descriptions of this application that the settings do not have.
    """
    described = {} if entries is None else entries.descriptions
    writes: dict[str, Description | None] = {}
    lines = []
    for name, description in configured.items():
        if name in kept:
            lines.append(f"{name}: not described, as its Kafka topics are not as the settings say.")
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
