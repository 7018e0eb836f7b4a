"""The error for a part of a schema without a type in Spark."""

from __future__ import annotations

from collections.abc import Sequence

from processor.errors import ConfigurationError


class Unmapped(ConfigurationError):
    """A part of a schema has no type in Spark; a column of another type could not hold its values."""

    def __init__(self, path: Sequence[str], what: str) -> None:
        """Create the error for a path; `what` describes its type."""
        self.what = f"{''.join(f'/{name}' for name in path) or 'the record'} is {what}"
        super().__init__(
            f"{self.what}: Spark has no type for it; give the columns yourself, without that one: "
            "schema='id LONG, name STRING'"
        )
