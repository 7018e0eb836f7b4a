"""Which checks a topic family must pass: what its topics say, put side by side. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from processor.tools.demo.check import Entry, Finding, Published, Replay, Sow, all_accounted, none_of, same_state

if TYPE_CHECKING:
    pass


@dataclass(slots=True)
class Family:
    """Everything that is folded out of the topics of one family."""

    published: Published
    """Its publish topic; stays empty for a conflated one."""
    replay: Replay
    """Its delta topic."""
    sow: Sow = field(default_factory=Sow)
    """Its SOW topic."""
    rejected: list[str] = field(default_factory=list)
    """Where the records of its dead-letter topic come from."""

    def take(self, role: str, entry: Entry) -> None:
        """One record of one of the topics."""
        if role == "publish":
            self.published.take(entry)
        elif role == "sow":
            self.sow.take(entry)
        elif role == "delta":
            self.replay.take(entry)
        elif role == "dlq":
            self.rejected.append(entry.headers.get("source", f"no source at {entry.place}"))


def topic_family(key_field: str) -> Family:
    """An empty family of a SOW topic."""
    return Family(Published(key_field), Replay())


def conflated_family(interval_s: float) -> Family:
    """An empty family of a conflated topic."""
    return Family(Published(""), Replay(interval_s))


def judge_topic(name: str, family: Family, sent: int) -> list[Finding]:
    """The checks of a SOW topic, of which so many records were sent to the publish topic."""
    return [
        all_accounted(name, sent, family.published, family.replay.taken, family.rejected),
        same_state(f"{name}.sow equals an independent fold", family.published, family.sow),
        same_state(f"{name}.delta replayed equals {name}.sow", family.sow, family.replay),
        none_of(
            f"{name}: no version missing or twice in {family.replay.taken:,} deltas",
            family.replay.gaps + family.sow.backward,
        ),
    ]


def judge_conflated(name: str, family: Family, underlying: str, under: Family, interval_s: float) -> list[Finding]:
    """The checks of a conflated topic next to the topic that it copies."""
    return [
        same_state(f"{name}.sow equals {underlying}.sow", under.sow, family.sow),
        same_state(f"{name}.delta replayed equals {name}.sow", family.sow, family.replay),
        none_of(
            f"{name}: nothing rejected, no version skipped unsaid in {family.replay.taken:,} deltas",
            family.replay.gaps + family.rejected,
        ),
        none_of(f"{name}: no key twice within {interval_s:g} s", family.replay.hasty),
    ]
