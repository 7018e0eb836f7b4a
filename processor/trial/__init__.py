"""For trials on one machine: a real Kafka, everything of a settings file at once, the demo and the benchmark.

No worker needs it.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ADAPTERS: Final = Path(str(files("processor.gateway"))) / "web" / "adapters"
"""The folder of the page's libraries from npm."""
GRID: Final = "node_modules/ag-grid-community/dist/ag-grid-community.min.noStyle.js"
"""The library of its grid."""
NO_GRID: Final = "The page has no grid, whose library comes from npm: {}."
"""The sentence for users, with `grid_remedy`."""


def gateway_is_installed() -> bool:
    """True if the packages of the extra `gateway` are there."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "jwt", "websockets"))


def grid_remedy() -> str:
    """How to fetch the library of the page's grid; empty: it is there."""
    if (ADAPTERS / GRID).exists():
        return ""
    folder = ADAPTERS.relative_to(Path.cwd()) if ADAPTERS.is_relative_to(Path.cwd()) else ADAPTERS
    return f"run npm ci --prefix {folder}, then load the page again"
