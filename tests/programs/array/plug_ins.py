"""The plug-ins that rows of the array use, as an installer leaves them: a preprocessor and an enricher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def install(site: Path) -> None:
    """Write the entry points below a directory, which must then be put on `sys.path`."""
    info = site / "array-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: array\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[sowstream.preprocessors]\ntrim = {__name__}:trim\n[sowstream.enrichers]\n"
        f"count_updates = {__name__}:count_updates\n"
    )


def trim(*, paths: list[list[str]]) -> Callable[[Any], Any]:
    """A preprocessor: texts at some paths lose the white space around them."""

    def preprocess(message: Any) -> Any:
        for path in paths:
            place = _object_at(message, path)
            if place is not None and isinstance(place.get(path[-1]), str):
                place[path[-1]] = place[path[-1]].strip()
        return message

    return preprocess


def count_updates(*, path: list[str], as_text: bool) -> Callable[[Any, Any], Any]:
    """An enricher: counts the updates of a record, in a field of it."""

    def enrich(message: Any, previous: Any) -> Any:
        before = _object_at(previous, path)
        count = int((before or {}).get(path[-1]) or 0) + 1
        place = message
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = str(count) if as_text else count
        return message

    return enrich


def _object_at(message: Any, path: list[str]) -> Any:
    """The object that the last name of a path is a member of; None where there is none."""
    for name in path[:-1]:
        message = message.get(name) if isinstance(message, dict) else None
    return message if isinstance(message, dict) else None
