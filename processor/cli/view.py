"""`sowstream view`: keeps views up to date, and rebuilds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from processor.cli.output import inform
from processor.cli.settings import Bootstrap, ConfigFile, StateDir, settings
from processor.cli.worker import Processes, elsewhere, refuse_others, run_pipelines
from processor.runtime.process.signals import stop_on_signal

if TYPE_CHECKING:
    from processor.config import Config

_REBUILD: Final = "rebuild"


def view(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VIEW]...", help="Views of the settings; or `rebuild` and the views to rebuild.  \\[default: all]"
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
    stop = stop_on_signal()
    tree = settings(config, bootstrap, state_dir)
    views = list(tree.views)
    refuse_others(names, views, elsewhere(tree, "view"))
    run_pipelines(tree, names or views, processes, stop, section="views")


def _rebuild(config: Config, names: list[str], *, is_confirmed: bool) -> None:
    """Rebuild views, or print what a rebuild would do."""
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.tools.views import ViewRebuild  # noqa: PLC0415

    if not names:
        raise ConfigurationError("sowstream view rebuild: name the views to rebuild")
    for rebuild in [ViewRebuild(config, name, inform) for name in names]:
        if is_confirmed:
            rebuild.run()
        else:
            inform(f"would delete and make again {', '.join(spec.name for spec in rebuild.topics)}")
    if not is_confirmed:
        inform("Nothing was changed; --yes does it.")
