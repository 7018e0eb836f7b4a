"""`sowstream worker`, `conflate`, `view` and `gateway`: run until they are stopped; `view rebuild` rebuilds views."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from processor.cli.output import inform
from processor.cli.shared_options import Bootstrap, ConfigFile, StateDir, settings, with_listen

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from processor.config import Config
    from processor.trial.up.readiness import Readiness


Names: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC", help="Topics of the settings.  \\[default: all]")
]
Processes: TypeAlias = Annotated[int, typer.Option(min=1, max=256, help="How many processes share the partitions.")]


def worker(
    names: Names = None,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = None,
    processes: Processes = 1,
    runs_all: Annotated[
        bool, typer.Option("--all", help="Run the conflated topics and the views too, in the same process.")
    ] = False,
) -> None:
    """Merge published records into the SOW topics, until SIGTERM or Ctrl-C.

    With --all one process does the work of `worker`, `conflate` and `view`, which is enough for trials and for small
    installations. Processes of their own share the processors of a machine better.
    """
    stop = stop_event()
    tree = settings(config, bootstrap, state_dir)
    merged = [*tree.names] if runs_all else [*tree.topics, *tree.processors]
    refuse_others(names, merged, {} if runs_all else elsewhere(tree, "worker"))
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
    stop = stop_event()
    tree = settings(config, bootstrap, state_dir)
    conflated = list(tree.conflated)
    refuse_others(names, conflated, elsewhere(tree, "conflate"), noun="conflated topic")
    run_pipelines(tree, names or conflated, processes, stop, section="conflated")


def elsewhere(tree: Config, here: str) -> dict[str, str]:
    """Return the command that runs each topic which the command `here` does not run."""
    commands = {"worker": (*tree.topics, *tree.processors), "conflate": tree.conflated, "view": tree.views}
    return {
        name: f"sowstream {command} {name}" for command, names in commands.items() if command != here for name in names
    }


def refuse_others(
    names: list[str] | None, names_here: list[str], elsewhere: dict[str, str], *, noun: str = "topic"
) -> None:
    """Reject a name that this command does not run, with the command that does.

    Raises:
        ConfigurationError: a name is not one of `names_here`.
    """
    from processor.errors import ConfigurationError, unknown_name  # noqa: PLC0415

    for name in names or ():
        if name in elsewhere:
            raise ConfigurationError(f"{name!r} is run by another command: {elsewhere[name]}")
        if name not in names_here:
            raise ConfigurationError(unknown_name(noun, name, names_here))


def stop_event() -> threading.Event:
    """The event that SIGTERM, SIGINT and the end of the terminal set from now on."""
    from processor.runtime.worker.os_process import stop_on_signal  # noqa: PLC0415

    return stop_on_signal()


def run_pipelines(config: Config, names: list[str], processes: int, stop: threading.Event, *, section: str) -> None:
    """Run pipelines until they are stopped, and end with the exit code of the worker."""
    from processor.errors import ConfigurationError, SowstreamError  # noqa: PLC0415
    from processor.runtime.worker.os_process import report_end  # noqa: PLC0415
    from processor.runtime.worker.worker import run_worker  # noqa: PLC0415

    if not config.names_topics:
        raise ConfigurationError(f"nothing to run: {config.no_topics}")
    if not names:
        raise ConfigurationError(f"nothing to run: the settings have no `{section}`; name another file with -c")
    if processes == 1:
        shorten_log(config, names)
    try:
        code = run_worker(config, names, stop=stop, processes=processes)
    except SowstreamError as error:
        report_end(error)
        raise
    raise typer.Exit(code)


_REBUILD: Final = "rebuild"


def view(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VIEW", help="Views of the settings; or `rebuild` and the views to rebuild.  \\[default: all]"
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With `rebuild`: do it; else it is only printed.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = None,
    processes: Processes = 1,
) -> None:
    """Keep the views up to date, until SIGTERM or Ctrl-C.

    A view over a topic that has records is built from these; readers see it grow. Any number of these commands may run,
    on any machines: they share the partitions of each stage of a view.

    `sowstream view rebuild NAME`, for a changed definition: while no worker of the view runs, its internal topics are
    deleted and made again. The next `sowstream view` deletes the rows and builds them again; subscribers receive both.
    """
    if names and names[0] == _REBUILD:
        _rebuild(settings(config, bootstrap, state_dir), names[1:], is_confirmed=yes)
        return
    stop = stop_event()
    tree = settings(config, bootstrap, state_dir)
    views = list(tree.views)
    refuse_others(names, views, elsewhere(tree, "view"), noun="view")
    run_pipelines(tree, names or views, processes, stop, section="views")


def _rebuild(config: Config, names: list[str], *, is_confirmed: bool) -> None:
    """Rebuild views, or print what a rebuild would do."""
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.repair.view_rebuild import ViewRebuild  # noqa: PLC0415

    if not names:
        raise ConfigurationError("sowstream view rebuild: name the views to rebuild")
    for rebuild in [ViewRebuild(config, name, inform) for name in names]:
        if is_confirmed:
            rebuild.run()
        else:
            topics = ", ".join(spec.name for spec in rebuild.topics) or "no topic"
            inform(f"would delete and make again {topics}, and begin with the first record of each input")
    if not is_confirmed:
        inform("Nothing was changed; --yes does it.")


def gateway(
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="The address; beats the settings.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=256, help="How many processes share the port.")] = 1,
) -> None:
    """Serve topics to browsers: WebSocket, Server-Sent Events, HTTP and a page, until SIGTERM or Ctrl-C."""
    from processor.errors import ConfigurationError  # noqa: PLC0415

    stop = stop_event()
    tree = with_listen(settings(config, bootstrap, state_dir), listen)
    try:
        from processor.gateway.server import run_gateway  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is not installed: pip install 'sowstream[gateway]'") from None
    raise typer.Exit(run_gateway(tree, stop, processes=processes))


_OF_THE_START: Final = frozenset(
    ("processors", "settings", "assigned", "let go", "restoring", "restored", "local state opened")
)
"""Events of which a worker logs several for each topic or partition when it starts."""
_OF_LATER_MOVES: Final = frozenset(("assigned", "let go"))
"""Those that are shown once all topics were ready: partitions come from other workers, or go to them."""


def shorten_log(config: Config, names: Sequence[str]) -> None:
    """Shorten the log of this process's worker, on a terminal without `-v`; a log for programs stays as it is.

    Args:
        config: the settings.
        names: the topics that the worker runs.

    Raises:
        ConfigurationError: the settings of a topic are invalid.
    """
    if not sys.stderr.isatty() or logging.getLogger("sowstream").isEnabledFor(logging.DEBUG):
        return
    from processor.trial.up.readiness import Readiness  # noqa: PLC0415

    short = _ShortStart(Readiness(config, names))
    for handler in logging.getLogger().handlers:
        handler.addFilter(short)


class _ShortStart(logging.Filter):
    """Drops the lines of a start, and prints a line for each topic that they make ready."""

    def __init__(self, readiness: Readiness) -> None:
        super().__init__()
        self._readiness = readiness
        self._began_s = time.monotonic()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is shown."""
        event = record.msg
        if not isinstance(event, dict) or event.get("event") not in _OF_THE_START or record.levelno > logging.INFO:
            return True
        if self._readiness.is_complete:
            return event["event"] in _OF_LATER_MOVES
        for topic in self._readiness.take(event):
            inform(topic.sentence(time.monotonic() - self._began_s))
        return False
