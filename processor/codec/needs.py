"""What to say where a message type's package is not installed."""

from __future__ import annotations

from processor.errors import ConfigurationError


def not_installed(message_type: str, error: ImportError) -> ConfigurationError:
    """The error of a message type that cannot be imported, with the command that mends it."""
    return ConfigurationError(
        f"message type {message_type!r} needs a package that is not installed ({error}); "
        "install it: pip install 'sowstream[formats]'"
    )
