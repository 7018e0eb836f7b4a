"""Where the embedded broker's files live when nobody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """What can be fetched again: `$SOWSTREAM_CACHE`, else `sowstream` in the user's cache directory."""
    if own := os.environ.get("SOWSTREAM_CACHE"):
        return Path(own).expanduser().absolute()
    return _user_directory("XDG_CACHE_HOME", ".cache")


def background_data_dir() -> Path:
    """The records of the broker that `sowstream broker start` leaves running: in the user's state directory."""
    return _user_directory("XDG_STATE_HOME", ".local/state") / "broker"


def _user_directory(variable: str, default: str) -> Path:
    """`sowstream` in one of the XDG base directories; the specification has relative ones ignored."""
    base = Path(os.environ.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / default) / "sowstream"
