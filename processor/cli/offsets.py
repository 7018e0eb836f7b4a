"""`sowstream offsets`: shows the workers' positions in their input, and sets new ones after a loss."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from processor.cli.output import inform, table
from processor.cli.shared_options import Bootstrap, ConfigFile, TopicArgument, settings

app = typer.Typer(help="Where workers stand in their input, and where they are to begin.", no_args_is_help=True)


class From(StrEnum):
    """The values of `--from`."""

    SOW = "sow"
    EARLIEST = "earliest"
    LATEST = "latest"


@app.command()
def show(topic: TopicArgument, config: ConfigFile = None, bootstrap: Bootstrap = None) -> None:
    """Print the input position of each partition of a topic; exit with 1 if a worker would hold one.

    `group` is the offset of the workers' consumer group, `outputs` the input position in the mark topic: earlier input
    is in the SOW topic already. `waiting` is the number of offsets before the end.
    """
    from processor.repair.worker_positions import COLUMNS, WorkerPositions, as_row  # noqa: PLC0415

    with WorkerPositions(settings(config, bootstrap), topic) as workers:
        positions = workers.read()
        has_mark_topic = workers.has_mark_topic
        mark = workers.pipeline.output("mark")
    table(COLUMNS, (as_row(one) for one in positions))
    if not has_mark_topic:
        inform(f"{mark} does not exist, so nothing but the group's offsets says where the outputs stand.")
    if any(one.state.partition(",")[0] != "ok" for one in positions):
        inform(f"`sowstream offsets adopt {topic} --from sow|earliest|latest` says where to begin.")
        raise typer.Exit(1)


@app.command()
def adopt(
    topic: TopicArgument,
    origin: Annotated[
        From,
        typer.Option(
            "--from",
            help="sow: where the outputs stand; earliest: merge all input again that is kept; latest: skip what waits.",
        ),
    ],
    partition: Annotated[int | None, typer.Option(min=0, metavar="P", help="Only this partition.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only printed what would be done.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Set the positions where the stopped workers of a topic begin, under the application_id of the settings.

    For lost offsets, an application_id that takes over from another one, a mirrored cluster, and deleted input.
    The group's offsets and the input positions in the mark topic are written in one transaction. Input that is merged
    again counts again: --from earliest doubles a `sum`. The command refuses while workers run. Dead letters that
    another application_id has sent back do not wait again; queues over the topic are named with the step they need.
    """
    from processor.repair.adoption import Adoption  # noqa: PLC0415
    from processor.repair.worker_positions import WorkerPositions  # noqa: PLC0415

    tree = settings(config, bootstrap)
    with WorkerPositions(tree, topic) as workers:
        adoption = Adoption(tree, workers, origin.value, partition)
        offsets = adoption.offsets
        rows = [
            (
                str(one.partition),
                "-" if one.committed is None else str(one.committed),
                str(offsets[one.partition]),
                adoption.meaning(one),
            )
            for one in adoption.positions
        ]
        table(("partition", "group", "begin", "meaning"), rows)
        for sentence in adoption.queue_steps:
            inform(sentence)
        if not yes:
            inform("Nothing was changed; --yes does it.")
            return
        adoption.write()
        inform(f"{len(rows)} partitions of {topic} begin there, as application_id {tree.application_id}.")
