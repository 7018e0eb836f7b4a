"""A real Apache Kafka for a laptop and for tests: downloaded once, started in seconds, removed without a trace.

`EmbeddedBroker` is imported at its first use: every command of `sowstream` imports this package for its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from processor.trial.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]


def __getattr__(name: str) -> object:
    """Import the broker at its first use."""
    if name == "EmbeddedBroker":
        from processor.trial.broker.embedded import EmbeddedBroker  # noqa: PLC0415

        return EmbeddedBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
