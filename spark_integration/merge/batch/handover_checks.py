"""What has to be so before merged records are handed over to workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from processor.errors import ConfigurationError
from processor.topics.family import Role
from spark_integration.merge.batch.history import Offsets, all_of

if TYPE_CHECKING:
    from spark_integration.merge.batch.result import Merged
    from spark_integration.merge.topic_family import Family

Mode: TypeAlias = Literal["bootstrap", "continue", "repair"]
"""`bootstrap`: there is no SOW yet. `continue`: the merge began with the SOW topic, where the workers stopped.
`repair`: the SOW topic is made what was merged."""


def cut_of(merged: Merged, cut: Offsets | None) -> Offsets:
    """Where the workers begin: where the merge ended, or for a history from elsewhere what was given.

    Raises:
        ConfigurationError: nothing says it, or two things do.
    """
    if (merged.cut is None) == (cut is None):
        raise ConfigurationError(
            "the history came from elsewhere: say with `cut` where the workers begin, offset of each partition of the "
            "input topic"
            if cut is None
            else "the cut is where the merge ended, and cannot be another one; leave `cut` out"
        )
    found = merged.cut if cut is None else cut
    assert found is not None
    return found


def refuse_topics(merged: Merged, family: Family, cut: Offsets) -> None:
    """Make sure that every topic is there, with the same partitions, and the input from the cut on.

    Raises:
        ConfigurationError: one is not.
    """
    wanted = merged.settings.topic.partitions
    roles: tuple[Role, ...] = ("publish", "sow", "delta", "mark", "dlq")
    for role in roles:
        found = family.partitions(role)
        if found != wanted:
            raise ConfigurationError(
                f"{merged.settings.kafka_topic(role)} has {found} partitions, the settings say {wanted}: keys "
                "would lie elsewhere than workers look; mend the settings, or make the topics anew"
            )
    bounds = family.bounds("publish", wanted)
    for partition, offset in all_of("cut", cut, wanted).items():
        begin, end = bounds.begins[partition], bounds.ends[partition]
        if not begin <= offset <= end:
            why = "what lies between is gone" if offset < begin else "so it is of another topic"
            raise ConfigurationError(
                f"partition {partition}: the cut is at offset {offset}, and the input topic has {begin} to {end}: "
                f"{why}; merge again"
            )


def refuse_group(merged: Merged, family: Family, cut: Offsets, mode: Mode) -> None:
    """Make sure that the workers' group is empty, and where the mode wants it.

    Raises:
        ConfigurationError: it is not.
    """
    family.refuse_members("two would write the same records")
    committed = family.committed(merged.settings.topic.partitions)
    if mode == "bootstrap" and committed and committed != dict(cut):
        raise ConfigurationError(
            f"the group {family.group} has offsets already, {_first(committed)}, and the cut is at "
            f"{_first(dict(cut))}: workers have been here. mode='continue' goes on with their records after "
            "merge_batch(…, base='sow'), mode='repair' makes their SOW topic what was merged"
        )
    if mode == "continue":
        bounds = merged.bounds
        if bounds is None or not merged.has_base:
            raise ConfigurationError(
                "mode='continue' goes on with a SOW topic: merge_batch(…, base='sow') begins there"
            )
        if bounds.begins | committed not in (bounds.begins, dict(cut)):
            raise ConfigurationError(
                f"the group {family.group} has moved to {_first(committed)} since the SOW topic was read: merge again"
            )


def _first(offsets: dict[int, int]) -> str:
    partition = min(offsets)
    return f"such as {offsets[partition]} in partition {partition}"
