"""The input of `sowstream bench`, for callers with an address and no settings."""

from __future__ import annotations

from processor.trial.bench import setup as bench
from processor.trial.bench.setup import SEED, Write, messages

__all__ = ["Write", "load", "messages"]


def load(bootstrap: str, topic: str, count: int, keys: int, *, seed: int = SEED, write: Write | None = None) -> None:
    """Publish `count` records over `keys` keys, as JSON without headers by default."""
    bench.load({"bootstrap.servers": bootstrap}, topic, count, keys, seed=seed, write=write)
