"""The command `sowstream`: its commands, and the one place that turns errors into exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from processor.cli import broker, dlq, offsets, queue, state, topics, transactions
from processor.cli.bench import bench
from processor.cli.check import check
from processor.cli.delete import delete
from processor.cli.demo import demo
from processor.cli.doctor import doctor
from processor.cli.gateway import gateway
from processor.cli.output import OutputClosed, inform
from processor.cli.plugins import plugins
from processor.cli.publish import publish
from processor.cli.resume import resume
from processor.cli.sow import get, sow
from processor.cli.stats import stats
from processor.cli.status import status
from processor.cli.subscribe import subscribe
from processor.cli.view import view
from processor.cli.worker import conflate, worker
from processor.errors import ConfigurationError, SowstreamError

# Slow modules are imported by the command that needs them, so that `--help` answers at once.
app = typer.Typer(
    name="sowstream",
    help="The state of the world of keyed records on Kafka: deltas in, merged records and deltas out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415

        typer.echo(version("sowstream"))
        raise typer.Exit


@app.callback()
def _every(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more, to stderr.")] = False,
    version: Annotated[  # noqa: ARG001 - acted upon by its callback
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    from processor.runtime.process.logging_setup import set_up_logging  # noqa: PLC0415

    set_up_logging(verbose=verbose)


app.add_typer(topics.app, name="topics")
for command in (
    demo, worker, conflate, view, gateway, publish, delete, sow, get, subscribe, stats, status, resume, check, doctor,
    plugins, bench,
):  # fmt: skip
    app.command()(command)
app.add_typer(dlq.app, name="dlq")
app.add_typer(queue.app, name="queue")
app.add_typer(offsets.app, name="offsets")
app.add_typer(transactions.app, name="transactions")
app.add_typer(state.app, name="state")
app.add_typer(broker.app, name="broker")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        app(arguments, prog_name="sowstream")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except OutputClosed:
        # Nothing may be written when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ConfigurationError as error:
        inform(f"sowstream: {error}")
        return 2
    except SowstreamError as error:
        inform(f"sowstream: {error}")
        return 1
    return 0


def main() -> None:
    """Run as the console script."""
    sys.exit(run())


if __name__ == "__main__":
    main()
