"""The default directories of the embedded broker."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The directory of files that can be downloaded again: `$SOWSTREAM_CACHE`, or `sowstream` in the user's cache."""
    if own := os.environ.get("SOWSTREAM_CACHE"):
        return Path(own).expanduser().absolute()
    return _user_directory("XDG_CACHE_HOME", ".cache")


def background_data_dir() -> Path:
    """The directory of the background broker's records: in the user's state directory."""
    return _user_directory("XDG_STATE_HOME", ".local/state") / "broker"


def _user_directory(variable: str, default: str) -> Path:
    """`sowstream` in one of the XDG base directories; by the specification, relative ones are ignored."""
    base = Path(os.environ.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / default) / "sowstream"
