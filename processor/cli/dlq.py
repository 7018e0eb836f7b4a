"""`sowstream dlq`: rejected records, shown, and sent back once their cause is mended."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from processor.cli.output import data, table, tell
from processor.cli.settings import Bootstrap, ConfigFile, settings

if TYPE_CHECKING:
    from processor.tools.dlq import Choice, DeadLetter, Survey, Waiting

_ROWS_MAX = 200  # Drawn on a terminal where no --count is given.

app = typer.Typer(help="Records that were rejected: look at them, and send them back.", no_args_is_help=True)

Topic: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A topic of the settings; its dead letters are in TOPIC.dlq.")
]
Reason: TypeAlias = Annotated[
    str | None, typer.Option(metavar="R", help="Only those rejected for this, such as undecodable.")
]


@app.command(name="list")
def list_letters(
    topic: Topic,
    reason: Reason = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those sent back before, as long as Kafka keeps them.")
    ] = False,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Do not cut long messages.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Print the dead letters that wait, one a line, as far as there are any now; on a terminal, a table of them."""
    from processor.tools.dlq import Choice, Waiting, as_json  # noqa: PLC0415

    choice = Choice(_known(reason))
    drawn: list[DeadLetter] | None = [] if sys.stdout.isatty() and not whole else None
    found: Counter[str] = Counter()
    with Waiting(settings(config, bootstrap), topic) as waiting:
        for letter in _chosen(waiting, choice, everything=everything):
            found[letter.reason or "unknown"] += 1
            if drawn is None:
                data(as_json(letter, whole=whole, waits=waiting.waits(letter) if everything else None))
            elif len(drawn) < (count or _ROWS_MAX):
                drawn.append(letter)
            if found.total() == count:
                break
    _report(topic, found, drawn, everything=everything, is_cut=found.total() == count)


@app.command()
def replay(
    topic: Topic,
    reason: Reason = None,
    partition: Annotated[int | None, typer.Option(min=0, metavar="P", help="With --offset: only this one.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="Its offset, as `list` tells it.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Send the dead letters that wait back to the input topic, each once, however often this is run or interrupted."""
    from processor.tools.dlq import Choice, Replay, Waiting, replayable, survey  # noqa: PLC0415

    if (partition is None) is not (offset is None):
        raise typer.BadParameter("--partition and --offset name one dead letter together", param_hint="--offset")
    place = None if partition is None or offset is None else (partition, offset)
    choice, tree = Choice(_known(reason), place), settings(config, bootstrap)
    if dry_run:
        source = replayable(tree, topic)
        with Waiting(tree, topic) as waiting, _progress("looking", None) as seen:
            found = survey(waiting.letters(), choice, seen)
        _refuse_nothing(topic, choice, found)
        tell(f"{found.chosen} of {found.waiting.total()} waiting dead letters would be sent back to {source}.")
        return
    running = None
    try:
        with Replay(tree, topic) as running:
            with _progress("looking", None) as seen:
                found = survey(running.waiting.letters(), choice, seen)
            _refuse_nothing(topic, choice, found)
            with _progress("sending", found.chosen + found.others) as done:
                running.send(found, choice, done)
    except KeyboardInterrupt:
        sent = 0 if running is None else running.sent
        tell(f"Interrupted: {sent} dead letters of {topic} sent back, the rest waits on.")
        raise
    for why in running.kept:
        tell(f"Not sent: {why}.")
    left = found.waiting.total() - running.sent
    tell(f"{running.sent} dead letters of {topic} sent back" + (f", {left} others wait on." if left else "."))


def _known(reason: str | None) -> str | None:
    """A reason: one of Sowstream's, or a plug-in's own.

    Raises:
        ConfigurationError: it is no word, or looks like one of Sowstream's that is misspelt.
    """
    from difflib import get_close_matches  # noqa: PLC0415
    from typing import get_args  # noqa: PLC0415

    from processor.config.suggestions import unknown_name  # noqa: PLC0415
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.record import RejectReason, is_reject_reason  # noqa: PLC0415

    known = list(get_args(RejectReason))
    if reason is None or reason in known:
        return reason
    if get_close_matches(reason.lower(), known) or not is_reject_reason(reason):
        raise ConfigurationError(unknown_name("reason", reason, known))
    return reason


def _chosen(waiting: Waiting, choice: Choice, *, everything: bool) -> Iterator[DeadLetter]:
    """The dead letters to be told, partition by partition as they come."""
    for _, letters in waiting.everything() if everything else waiting.letters():
        yield from filter(choice.takes, letters)


def _report(topic: str, found: Counter[str], drawn: list[DeadLetter] | None, *, everything: bool, is_cut: bool) -> None:
    """Draw what is to be drawn, and say how many there are."""
    from processor.tools.dlq import COLUMNS, as_row  # noqa: PLC0415

    if drawn:
        table(COLUMNS, (as_row(letter) for letter in drawn))
    state = "are kept" if everything else "wait"
    if not found:
        tell(f"No such dead letters of {topic} {state}." if everything else f"No dead letters of {topic} {state}.")
        return
    reasons = ", ".join(f"{count} {reason}" for reason, count in found.most_common())
    if is_cut:
        tell(f"The first {found.total()} dead letters of {topic}: {reasons}; there may be more.")
        return
    tell(f"{found.total()} dead letters of {topic} {state}: {reasons}.")
    if drawn is not None and len(drawn) < found.total():
        tell(f"The first {len(drawn)} are shown; --count shows more, and a pipe gets all.")


def _refuse_nothing(topic: str, choice: Choice, found: Survey) -> None:
    """One that was named must be there; that none waits at all is no error.

    Raises:
        Stop: it is not.
    """
    from processor.errors import Stop  # noqa: PLC0415

    if choice.place is not None and not found.chosen:
        partition, offset = choice.place
        raise Stop(
            f"no such dead letter of {topic} waits at partition {partition} offset {offset}; "
            f"`sowstream dlq list {topic}` shows those that do. Each replay puts those it passes by at a new offset"
        )


@contextmanager
def _progress(doing: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar where the number is known, a spinner where it is not; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda count: bar.advance(task, count)
