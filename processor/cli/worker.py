"""`sowstream worker` and `sowstream conflate`: run processors until told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from processor.cli.settings import Bootstrap, ConfigFile, StateDir, settings
from processor.runtime.process.signals import stop_on_signal

if TYPE_CHECKING:
    import threading

    from processor.config import Config

Names: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics of the settings.  \\[default: all]")
]
Processes: TypeAlias = Annotated[int, typer.Option(min=1, max=256, help="How many processes share the partitions.")]


def worker(
    names: Names = None,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = None,
    processes: Processes = 1,
) -> None:
    """Merge what is published into the SOW topics, until SIGTERM or Ctrl-C."""
    stop = stop_on_signal()
    tree = settings(config, bootstrap, state_dir)
    merged = [*tree.topics, *tree.processors]
    _refuse_others(names, merged, {name: f"sowstream conflate {name}" for name in tree.conflated})
    _run(tree, names or merged, processes, stop, section="topics")


def conflate(
    names: Names = None,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = None,
    processes: Processes = 1,
) -> None:
    """Keep the conflated topics up to date, until SIGTERM or Ctrl-C.

    Each key of a conflated topic changes at most once per interval, and its last state always arrives. Any number of
    these may run, on any machines; what one held back when it ended, another one delivers.
    """
    stop = stop_on_signal()
    tree = settings(config, bootstrap, state_dir)
    conflated = list(tree.conflated)
    _refuse_others(names, conflated, {name: f"sowstream worker {name}" for name in (*tree.topics, *tree.processors)})
    _run(tree, names or conflated, processes, stop, section="conflated")


def _refuse_others(names: list[str] | None, known: list[str], elsewhere: dict[str, str]) -> None:
    """A name of another section is told where it belongs.

    Raises:
        ConfigurationError: a name is not one of `known`.
    """
    from processor.config.suggestions import unknown_name  # noqa: PLC0415
    from processor.errors import ConfigurationError  # noqa: PLC0415

    for name in names or ():
        if name in elsewhere:
            raise ConfigurationError(f"{name!r} is run by another command: {elsewhere[name]}")
        if name not in known:
            raise ConfigurationError(unknown_name("topic", name, known))


def _run(config: Config, names: list[str], processes: int, stop: threading.Event, *, section: str) -> None:
    from processor.errors import ConfigurationError, SowstreamError  # noqa: PLC0415
    from processor.runtime.process.exit_report import report_end  # noqa: PLC0415
    from processor.runtime.process.worker import run_worker  # noqa: PLC0415

    if not names:
        raise ConfigurationError(f"nothing to run: the settings have no `{section}`; name another file with -c")
    try:
        code = run_worker(config, names, stop=stop, processes=processes)
    except SowstreamError as error:
        report_end(error)
        raise
    raise typer.Exit(code)
