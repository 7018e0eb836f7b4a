"""A part of a schema that Spark has no type for."""

from __future__ import annotations

from collections.abc import Sequence

from processor.errors import ConfigurationError


class Unmapped(ConfigurationError):
    """Nothing is read: a column of another type would say something else than the records."""

    def __init__(self, path: Sequence[str], what: str) -> None:
        """Say where it stands and what it is."""
        self.what = f"{''.join(f'/{name}' for name in path) or 'the record'} is {what}"
        super().__init__(
            f"{self.what}: Spark has no type for it; give the columns yourself, without that one: "
            "schema='id LONG, name STRING'"
        )
