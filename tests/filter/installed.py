"""Third parties' filter functions, installed as an installer does it."""

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
    """Write the metadata and entry points of an installed distribution."""
    info = site / "functions-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: functions\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {__name__}:{target}" for name, target in ENTRY_POINTS.items())
    (info / "entry_points.txt").write_text(f"[sowstream.functions]\n{lines}\n")


def argument_type(value):
    """Return the name of the Python type in which a value is passed."""
    return type(value).__name__


def basis_points(price, reference):
    """The difference of a price from a reference, in basis points."""
    return None if price is None or not reference else (price - reference) / reference * 10_000


def spread(bid, ask=0):
    """The difference between two sides."""
    return ask - bid


def ticks():
    """A clock that always returns 5."""
    return 5


ticks.moves_by_itself = True


def fails(value):
    """Raise an unexpected error."""
    raise OSError(f"no table for {value}")


def refuses(value):
    """Reject the record."""
    raise RecordRejected("schema_mismatch", "not today")


def stops(value):
    """Stop the worker."""
    raise Stop("the reference service is gone; start it")


def by_name(*, price):
    """A function with a keyword-only argument, which no filter can call."""


def largest(*values):
    """The largest of any number of arguments."""
    return max(values, default=None)


def listed(value):
    """An array with the value in it."""
    return [value, "x"]
