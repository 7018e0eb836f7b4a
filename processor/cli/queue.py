"""`sowstream queue`: takes messages from a queue, and shows how it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from processor.cli.output import data, inform, require_all, take_each
from processor.cli.shared_options import Bootstrap, ConfigFile, settings
from processor.errors import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.client import QueueMessage

app = typer.Typer(help="Queues over SOW topics: take messages, and see how a queue stands.", no_args_is_help=True)

QueueName: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="A queue of the settings.")]

_FATES = {
    "acknowledged": "acknowledged",
    "delivered_again": "delivered before",
    "dead": "made dead letters",
    "lapsed": "given up when their lease ended",
    "lost": "whose outcome Kafka did not take",
}


@app.command()
def take(
    name: QueueName,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N messages.")] = None,
    max_backlog: Annotated[
        int, typer.Option(min=1, max=2000, metavar="N", help="About how many may be leased to this command at a time.")
    ] = 10,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="S", help="End when none came for S seconds.")] = None,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Print messages, one per line, and acknowledge each when it is printed, until Ctrl-C.

    Other consumers of the queue get the others. Exit with 1 if fewer than --count came in time. Messages that were
    leased and not printed are released at once.
    """
    from processor.client import Client  # noqa: PLC0415

    with Client("queue", settings(config, bootstrap)) as client:
        with client.queue(name, max_backlog=min(max_backlog, count or max_backlog), timeout_s=timeout) as queue:
            taken = take_each(queue, _print, count)
        inform(f"{_counts(queue.counts)} of {name}.")
    require_all(taken, count)


@app.command()
def status(name: QueueName, config: ConfigFile = None, bootstrap: Bootstrap = None) -> None:
    """Print how a queue stands: its messages, its dead letters, and settings of its share group that differ.

    Exit with 1 if no consumer could begin.
    """
    from processor.operate.queue_status import queue_status  # noqa: PLC0415

    report = queue_status(settings(config, bootstrap), name)
    for line in report.lines:
        data(line)
    for problem in report.problems:
        inform(str(problem))
    if any(problem.severity == "refuse" for problem in report.problems):
        raise typer.Exit(1)


def _print(message: QueueMessage) -> None:
    """Print a message, and acknowledge it."""
    data(message.to_json())
    message.ack()


def _counts(counts: Mapping[str, int]) -> str:
    """The fates of messages as a line for people."""
    shown = [f"{counts[fate]:,} {words}" for fate, words in _FATES.items() if counts.get(fate)]
    return counted(counts.get("delivered", 0), "message") + (f" ({', '.join(shown)})" if shown else "")
