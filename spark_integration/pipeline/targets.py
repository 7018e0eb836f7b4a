"""The target of a job's rows: a directory of Parquet, or a table of Delta or Iceberg."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import model_validator

from processor.config.section import Section
from spark_integration.pipeline.places import DataPath

TargetFormat: TypeAlias = Literal["parquet", "delta", "iceberg"]
"""The format of the files: `delta` and `iceberg` need their package in the session."""


class Target(Section):
    """Section `to` of a job."""

    format: TargetFormat = "parquet"
    """`parquet`, `delta` or `iceberg`."""
    path: DataPath | None = None
    """The directory, for `parquet` and `delta`."""
    table: str | None = None
    """The name of the table in a catalog, for `delta` and `iceberg`."""

    @model_validator(mode="after")
    def _has_one_place(self) -> Target:
        """Check that the place fits the format."""
        if (self.path is None) == (self.table is None):
            raise ValueError("give one of path and table")
        if self.format == "parquet" and self.path is None:
            raise ValueError("parquet is written to a directory: give path")
        if self.format == "iceberg" and self.table is None:
            raise ValueError("iceberg is written to a table of a catalog: give table, such as lake.db.orders")
        return self

    @property
    def place(self) -> str:
        """The path, or the name of the table."""
        return self.path or self.table or ""
