"""Finds and loads what installed packages offer under an entry-point group: ours like anybody's."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from processor.config.suggestions import unknown_name
from processor.errors import ConfigurationError


def installed_names(group: str) -> list[str]:
    """The names offered under a group, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def find_installed(group: str, noun: str, name: str) -> EntryPoint:
    """The entry point of a name; `noun` is what a person calls it.

    Raises:
        ConfigurationError: there is none, with a suggestion.
    """
    for point in entry_points(group=group, name=name):
        return point
    raise ConfigurationError(unknown_name(noun, name, installed_names(group)))


def load_installed(point: EntryPoint, noun: str) -> Any:
    """What an entry point leads to.

    Raises:
        ConfigurationError: it cannot be imported.
    """
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{noun} {point.name!r}: {point.value} cannot be loaded: {error}; install what it needs"
        ) from error
