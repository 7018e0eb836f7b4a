"""Third parties' functions, as an installer leaves them."""

from __future__ import annotations

from pathlib import Path

from processor.errors import RecordRejected, Stop

ENTRY_POINTS = {
    "basis_points": "basis_points",
    "Spread": "spread",
    "ticks": "ticks",
    "fails": "fails",
    "refuses": "refuses",
    "stops": "stops",
    "upper": "spread",
    "gone": "not_there",
    "no_function": "NUMBER",
    "by_name": "by_name",
    "largest": "largest",
    "listed": "listed",
    "argument_type": "argument_type",
}

NUMBER = 7


def install(site: Path) -> None:
    """Write what an installer writes."""
    info = site / "functions-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: functions\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {__name__}:{target}" for name, target in ENTRY_POINTS.items())
    (info / "entry_points.txt").write_text(f"[sowstream.functions]\n{lines}\n")


def argument_type(value):
    """The Python type that a value is given as."""
    return type(value).__name__


def basis_points(price, reference):
    """How far a price is from another one."""
    return None if price is None or not reference else (price - reference) / reference * 10_000


def spread(bid, ask=0):
    """Between two sides."""
    return ask - bid


def ticks():
    """A clock."""
    return 5


ticks.moves_by_itself = True


def fails(value):
    """Trips."""
    raise OSError(f"no table for {value}")


def refuses(value):
    """Says itself how it rejects."""
    raise RecordRejected("schema_mismatch", "not today")


def stops(value):
    """Orders the worker to stop."""
    raise Stop("the reference service is gone; start it")


def by_name(*, price):
    """Cannot be called from a filter."""


def largest(*values):
    """Any number of arguments."""
    return max(values, default=None)


def listed(value):
    """An array."""
    return [value, "x"]
