"""The flags that every command has, and the settings they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from processor.config import Config

ConfigFile: TypeAlias = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings.  \\[default: ./sowstream.yaml]")
]
Bootstrap: TypeAlias = Annotated[
    str | None, typer.Option("--bootstrap", metavar="ADDR", help="Kafka's address; beats the settings.")
]
StateDir: TypeAlias = Annotated[
    Path | None, typer.Option("--state-dir", metavar="DIR", help="Where RocksDB keeps state; beats the settings.")
]
TopicArgument: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic of the settings.")]


def settings(config: Path | None, bootstrap: str | None, state_dir: Path | None = None) -> Config:
    """Read the settings; imported late, for `--help` needs none.

    Raises:
        ConfigurationError: they cannot be used.
    """
    from processor.config import load  # noqa: PLC0415

    return load(config, bootstrap=bootstrap, state_dir=state_dir)
