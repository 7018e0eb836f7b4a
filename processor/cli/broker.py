"""`sowstream broker`: a real Apache Kafka in the background, for trials on one machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from processor.errors import Stop
from processor.tools.broker.directories import background_data_dir
from processor.tools.broker.server import HEAP

app = typer.Typer(help="An Apache Kafka in the background, on the loopback address.", no_args_is_help=True)

PORT = 9092
"""Kafka's usual port, which every command uses when no broker is named."""


def _heap(value: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[kmgKMG]", value):
        raise typer.BadParameter("write a size as Java does: 512m, 2g")
    return value


Data = Annotated[
    Path | None,
    typer.Option("--data", help="Its records and logs. Default: sowstream/broker in the user's state directory."),
]


@app.command()
def start(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where clients connect; 0 is any free port.")] = PORT,
    data: Data = None,
    heap: Annotated[str, typer.Option(callback=_heap, help="Java's memory, such as 512m or 2g.")] = HEAP,
) -> None:
    """Start a broker, wait until it is ready, and print its address. A running one is left as it is."""
    directory = data or background_data_dir()
    running, is_new = _background().start(directory, port, heap)
    _inform(f"{'Started' if is_new else 'Runs already'}: process {running.pid}, data and logs in {directory}")
    typer.echo(running.bootstrap)


@app.command()
def status(data: Data = None) -> None:
    """Print the broker's address; exit with 1 if none runs."""
    directory = data or background_data_dir()
    running = _background().find(directory)
    if running is None:
        _inform(f"No broker runs on {directory}.")
        raise typer.Exit(1)
    _inform(f"Runs: process {running.pid}, data and logs in {directory}")
    typer.echo(running.bootstrap)


@app.command()
def stop(data: Data = None) -> None:
    """Stop the broker. Its records are kept for the next start."""
    directory = data or background_data_dir()
    running = _background().stop(directory)
    _inform(f"Stopped: process {running.pid}." if running else f"No broker runs on {directory}.")


def _background() -> ModuleType:
    """The module, imported late: the other commands work without the packages that the embedded broker needs."""
    try:
        from processor.tools.broker import background  # noqa: PLC0415
    except ImportError as error:
        raise Stop(f"the embedded broker needs {error.name}: pip install 'sowstream[embedded]'") from None
    return background


def _inform(line: str) -> None:
    """Print a line for people; standard output is for data."""
    sys.stderr.write(f"{line}\n")
