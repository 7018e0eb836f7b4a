"""`sowstream reshard`: moves a topic to another number of partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from processor.cli.output import inform, records_read
from processor.cli.shared_options import Bootstrap, ConfigFile, TopicArgument, settings


def reshard(
    topic: TopicArgument,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Longest wait for the workers; if they have not left, they go on.")
    ] = 180.0,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only printed what would be done.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Give up a move that has died before it moved anything.")
    ] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Move a topic to another one with another number of partitions: the one with `moved_from` in its settings.

    Publishers go on: what they publish to the old topic is forwarded to the new one, in the order of each key, exactly
    once. The workers of the topic leave by themselves, its records and publishers' numbers are copied, and the workers
    of both topics go on. Readers of the old topic end with an error that names the new one. After a death, run the same
    command again.
    """
    from processor.repair.reshard import Reshard, dependents  # noqa: PLC0415

    tree = settings(config, bootstrap)
    with (
        records_read("copying") as on_copied,
        Reshard(tree, topic, timeout_s=timeout, on_step=_show_step, on_copied=on_copied) as move,
    ):
        if cancel:
            has_begun = move.cancel()
            inform(f"The workers of {topic} go on." if has_begun else f"No move of {topic} has begun.")
            return
        name = move.moved_to
        for other in dependents(tree, topic):
            inform(f"{other} is made of {topic}, and will get no more updates: make a new one of {name}.")
        if not yes:
            move.check()
            inform(
                f"{topic}, {tree.topics[topic].partitions} partitions, would move to {name}, "
                f"{tree.topics[name].partitions} partitions. Nothing was changed; --yes does it."
            )
            return
        done = move.run()
    inform(
        f"{topic} has moved to {name}: {done.records:,} records written, no worker merged for {done.stood_s:.1f} s. "
        f"What is published to {topic} is forwarded; move publishers and readers to {name} when it suits them."
    )


_DOING = {
    "check": "Looking at settings and topics",
    "claim": "Telling the workers to leave",
    "drain": "Waiting until the workers have left",
    "copy": "Copying records and publishers' numbers",
    "move": "Letting the workers go on, and telling readers",
    "settle": "Waiting until the old partitions are forwarded, before those that were added",
}


def _show_step(step: str) -> None:
    inform(f"{_DOING[step]} …")
