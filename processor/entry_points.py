"""Finds and loads the entry points of installed packages, Sowstream's own in the same way as third parties'."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from processor.errors import ConfigurationError, unknown_name


def installed_names(group: str) -> list[str]:
    """Return the names of the entry points of a group, sorted."""
    return sorted(_points(group, tuple(sys.path)).names)


def find_installed(group: str, noun: str, name: str) -> EntryPoint:
    """Return the entry point of a name; `noun` names its kind in messages, such as "processor".

    Raises:
        ConfigurationError: there is none, with a suggestion.
    """
    for point in _points(group, tuple(sys.path)).select(name=name):
        return point
    raise ConfigurationError(unknown_name(noun, name, installed_names(group)))


@lru_cache(maxsize=64)
def _points(group: str, _path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of a group. To look through all packages takes 30 ms: a filter may name many functions.

    Args:
        group: the group.
        _path: where Python looks for packages.
    """
    return entry_points(group=group)


def load_installed(point: EntryPoint, noun: str) -> Any:
    """Load the object of an entry point.

    Raises:
        ConfigurationError: it cannot be imported, or its module fails.
    """
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{noun} {point.name!r}: {point.value} cannot be loaded: {error}; install what it needs"
        ) from error
    except ConfigurationError:
        raise  # The module knows what it lacks.
    except Exception as error:
        raise ConfigurationError(
            f"{noun} {point.name!r}: {point.value} cannot be loaded: its module raised {type(error).__name__}: {error}"
        ) from error
