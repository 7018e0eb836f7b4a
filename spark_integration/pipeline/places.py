"""Paths of a pipeline: relative ones begin at the directory of its file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, ValidationInfo

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
