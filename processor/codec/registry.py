"""Finds the codec of a message type by its entry point."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, cast

from processor.codec.contract import Codec
from processor.config import unknown_name
from processor.errors import ConfigurationError

GROUP = "sowstream.codecs"
"""The entry-point group: the name is the message type, the object a class or function that makes the codec."""


def codec_names() -> list[str]:
    """The message types that are installed, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_codec(message_type: str, **options: Any) -> Codec:
    """Make the codec of a message type.

    Args:
        message_type: its name in the entry-point group, such as `json`.
        options: what its constructor takes, such as `max_depth`.

    Raises:
        ConfigurationError: there is no such message type, it cannot be imported, or it refuses an option.
    """
    for point in entry_points(group=GROUP, name=message_type):
        try:
            make = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"message type {message_type!r}: {point.value} cannot be loaded: {error}; install what it needs"
            ) from error
        return cast("Codec", make(**options))
    raise ConfigurationError(unknown_name("message type", message_type, codec_names()))
