"""Paths of a pipeline: relative ones begin at the directory of its file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, ValidationInfo, model_validator

from processor.config.section import Section

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")


def located(path: str, home: Path) -> str:
    """The absolute form of a path: one with a scheme, such as `s3a://lake/orders`, stays as it is."""
    if _SCHEME.match(path) or path.startswith("/"):
        return path.rstrip("/") or path
    return str((home / path).resolve())


def _located(path: str, info: ValidationInfo) -> str:
    home = (info.context or {}).get("home")
    return path if home is None else located(path, home)


DataPath: TypeAlias = Annotated[str, AfterValidator(_located)]
"""A file or a directory on any file system that Spark knows; a relative one begins at the pipeline's file."""

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
