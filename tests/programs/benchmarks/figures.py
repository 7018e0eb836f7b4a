"""The JSON that the programs write: for each series, such as a program or a size, the figures of each round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

PLACE = Path("build/benchmarks")
"""The suite's directory for figures and charts."""
SUITE_FILE = PLACE / "figures.json"

Figures: TypeAlias = dict[str, list[dict[str, float]]]
"""The rounds of each series, in the order in which they ran; rounds with the same index were run in turn."""


def write(file: Path | None, figures: Figures) -> None:
    """Write all figures, if a file was requested."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def read(file: Path) -> Figures:
    """Read the figures of a program."""
    return dict(json.loads(file.read_text(encoding="utf-8")))
