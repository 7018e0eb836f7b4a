"""For trials on one machine: a real Kafka, everything of a settings file at once, the demo and the benchmark.

No worker needs it.
"""

from __future__ import annotations

from importlib.util import find_spec


def gateway_is_installed() -> bool:
    """True if the packages of the extra `gateway` are there."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "jwt", "websockets"))
