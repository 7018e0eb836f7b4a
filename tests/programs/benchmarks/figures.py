"""The JSON that the programs write: for each series, such as a program or a size, what each round of it measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

PLACE = Path("build/benchmarks")
"""Where the suite puts what it measured and drew."""
SUITE_FILE = PLACE / "figures.json"

Figures: TypeAlias = dict[str, list[dict[str, float]]]
"""A series' name to its rounds, in the order they were run; those of one place in the lists were run in turn."""


def write(file: Path | None, figures: Figures) -> None:
    """Write every figure, if a file was asked for."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def read(file: Path) -> Figures:
    """Read what a program wrote."""
    return dict(json.loads(file.read_text(encoding="utf-8")))
