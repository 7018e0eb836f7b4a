"""`sowstream worker`, `sowstream conflate` and `sowstream view`: run processors until they are stopped."""

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
    """Merge published records into the SOW topics, until SIGTERM or Ctrl-C."""
    stop = stop_on_signal()
    tree = settings(config, bootstrap, state_dir)
    merged = [*tree.topics, *tree.processors]
    refuse_others(names, merged, elsewhere(tree, "worker"))
    run_pipelines(tree, names or merged, processes, stop, section="topics")


def conflate(
    names: Names = None,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = None,
    processes: Processes = 1,
) -> None:
    """Keep the conflated topics up to date, until SIGTERM or Ctrl-C.

    Each key of a conflated topic changes at most once per interval, and its last state always arrives. Any number of
    these may run, on any machines; pending updates of one that ends are delivered by another.
    """
    stop = stop_on_signal()
    tree = settings(config, bootstrap, state_dir)
    conflated = list(tree.conflated)
    refuse_others(names, conflated, elsewhere(tree, "conflate"))
    run_pipelines(tree, names or conflated, processes, stop, section="conflated")


def elsewhere(tree: Config, here: str) -> dict[str, str]:
    """Return the command that runs each topic which the command `here` does not run."""
    commands = {"worker": (*tree.topics, *tree.processors), "conflate": tree.conflated, "view": tree.views}
    return {
        name: f"sowstream {command} {name}" for command, names in commands.items() if command != here for name in names
    }


def refuse_others(names: list[str] | None, names_here: list[str], elsewhere: dict[str, str]) -> None:
    """Reject a name that this command does not run, with the command that does.

    Raises:
        ConfigurationError: a name is not one of `names_here`.
    """
    from processor.config.suggestions import unknown_name  # noqa: PLC0415
    from processor.errors import ConfigurationError  # noqa: PLC0415

    for name in names or ():
        if name in elsewhere:
            raise ConfigurationError(f"{name!r} is run by another command: {elsewhere[name]}")
        if name not in names_here:
            raise ConfigurationError(unknown_name("topic", name, names_here))


def run_pipelines(config: Config, names: list[str], processes: int, stop: threading.Event, *, section: str) -> None:
    """Run pipelines until they are stopped, and end with the exit code of the worker."""
    from processor.errors import ConfigurationError, SowstreamError  # noqa: PLC0415
    from processor.runtime.process.exit_report import report_end  # noqa: PLC0415
    from processor.runtime.process.worker import run_worker  # noqa: PLC0415

    if not config.names_topics:
        raise ConfigurationError(f"nothing to run: {config.no_topics}")
    if not names:
        raise ConfigurationError(f"nothing to run: the settings have no `{section}`; name another file with -c")
    try:
        code = run_worker(config, names, stop=stop, processes=processes)
    except SowstreamError as error:
        report_end(error)
        raise
    raise typer.Exit(code)
