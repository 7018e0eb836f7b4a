"""The command `sowstream-spark`: the jobs of a pipeline, and the merge itself, on Spark.

Its commands, exit codes and streams follow `processor.cli`: standard output is data, standard error is for people; 0
done, 1 failed, 2 wrong usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import typer

from processor.cli.output import Verbose, Version, exit_code, with_flowing_help, write_any_character
from spark_integration.cli.check import check
from spark_integration.cli.init import init
from spark_integration.cli.merge_commands import backfill, handback, merge, reconcile, takeover
from spark_integration.cli.run import run, status

COMMANDS: Final[tuple[Callable[..., Any], ...]] = (
    init, check, run, merge, takeover, handback, backfill, reconcile, status,
)  # fmt: skip
"""The commands, in the order of `--help`: each a function in a module of its name."""

# Slow modules are imported by the command that needs them, so that `--help` answers at once.
app = typer.Typer(
    name="sowstream-spark",
    help="The pipeline on Spark: from raw input to the state of the world, to tables, features and back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _every(verbose: Verbose = False, version: Version = False) -> None:  # noqa: ARG001 - acted upon by its callback
    from processor.runtime.worker.logging_setup import set_up_logging  # noqa: PLC0415

    set_up_logging(verbose=verbose)


for command in COMMANDS:
    app.command()(command)
with_flowing_help(app)


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    return exit_code("sowstream-spark", lambda: app(arguments, prog_name="sowstream-spark"))


def main() -> None:
    """Run as the console script."""
    write_any_character()
    sys.exit(run_command())
