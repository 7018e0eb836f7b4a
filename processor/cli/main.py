"""The command `sowstream`: its commands, of which the named one alone is built."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final

import typer

from processor.cli.output import Verbose, Version, exit_code, inform, with_flowing_help, write_any_character

_GROUPS: Final = ("topics", "dlq", "queue", "offsets", "transactions", "state", "broker")
_PANELS: Final = {
    "Try it": {"up": "trial", "demo": "trial", "broker": "trial", "bench": "trial"},
    "Run": {
        "check": "diagnosis", "topics": "topics", "worker": "worker", "conflate": "worker", "view": "worker",
        "gateway": "worker",
    },
    "Data": {
        "publish": "publish", "delete": "records", "get": "records", "sow": "records", "subscribe": "records",
        "queue": "queue", "stats": "records", "mark": "publish",
    },
    "Operate": {
        "status": "status", "resume": "status", "doctor": "diagnosis", "dlq": "dlq", "offsets": "offsets",
        "transactions": "transactions", "state": "state", "reshard": "topics", "plugins": "diagnosis",
    },
}  # fmt: skip
"""The module of each command, in `processor.cli`, by the heading in the help; a group's module has its `app`."""
_COMMANDS: Final = {name: (module, panel) for panel, modules in _PANELS.items() for name, module in modules.items()}


def _every(verbose: Verbose = False, version: Version = False) -> None:  # noqa: ARG001 - acted upon by its callback
    from processor.runtime.worker.logging_setup import set_up_logging  # noqa: PLC0415

    if not gc.isenabled():  # `main` turned it off; who calls `run` in a process of its own keeps its collector.
        # The objects of imports stay: no collection need search them for cycles, which takes a tenth of a second.
        gc.freeze()
        gc.enable()
    set_up_logging(verbose=verbose)


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """The command line: with the one command that these words name, or with all of them.

    Building all commands takes longer than Kafka takes to answer one of them. Help, the shell's completion and misspelt
    names need them all.

    Args:
        words: the arguments.
    """
    named = next((word for word in words if not word.startswith("-")), "")
    is_one = named in _COMMANDS and "_SOWSTREAM_COMPLETE" not in os.environ
    app = typer.Typer(
        name="sowstream",
        help="The state of the world of keyed records on Kafka: deltas in, merged records and deltas out.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_every)
    for name in [named] if is_one else _COMMANDS:
        home, panel = _COMMANDS[name]
        module = import_module(f"processor.cli.{home}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name, rich_help_panel=panel)
        else:
            app.command(rich_help_panel=panel)(getattr(module, name))
    return with_flowing_help(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        return exit_code("sowstream", lambda: command_line(words)(arguments, prog_name="sowstream"))
    except UnicodeEncodeError as error:
        # Python makes half a surrogate pair of each byte of an argument that is not UTF-8.
        if (word := next((one for one in words if error.object[error.start : error.end] in one), None)) is None:
            raise
        inform(f"sowstream: the argument {word!r} is not UTF-8 text")
        return 2


def main() -> None:
    """Run as the console script."""
    write_any_character()
    gc.disable()  # Until the command line is parsed: what imports make is not garbage.
    code = 1  # An error that nothing has caught: Python prints it before `leave`.

    def leave() -> None:
        # The work is done; clients and stores are closed. What would follow is the end of Python and its C libraries,
        # beside threads of librdkafka that may still be there, even in the midst of a TLS handshake: a worker that had
        # said "stopped" was ended by a signal, and so with another exit code.
        with suppress(OSError):  # Nobody may read it any more.
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)  # Registered first, it is called after those that flush logs and spans.
    code = run()
    sys.exit(code)


if __name__ == "__main__":
    main()
