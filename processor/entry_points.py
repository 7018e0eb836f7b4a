"""Finds and loads the entry points of installed packages, Sowstream's own in the same way as third parties'."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from processor.config.suggestions import unknown_name
from processor.errors import ConfigurationError


def installed_names(group: str) -> list[str]:
    """Return the names of the entry points of a group, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def find_installed(group: str, noun: str, name: str) -> EntryPoint:
    """Return the entry point of a name; `noun` names its kind in messages, such as "processor".

    Raises:
        ConfigurationError: there is none, with a suggestion.
    """
    for point in entry_points(group=group, name=name):
        return point
    raise ConfigurationError(unknown_name(noun, name, installed_names(group)))


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
