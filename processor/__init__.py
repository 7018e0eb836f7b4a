"""Sowstream: the state of the world of keyed records on Kafka."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    """The version of the installed package, which stands in pyproject.toml."""


def __getattr__(name: str) -> object:
    """Look up the version at its first use: importing the library for it takes longer than many a command."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415

    return version("sowstream")
