"""Number formats of the demo, for the screen and for plain lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_BARS: Final = "▁▂▃▄▅▆▇█"


def milliseconds(value: float | None) -> str:
    """`23 ms`, `1.4 s`, or a dash for None."""
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.1f} s"


def size(value_bytes: float) -> str:
    """`917 B`, `3.4 MB`."""
    for unit in ("B", "kB", "MB"):
        if value_bytes < 1000:
            return f"{value_bytes:.0f} {unit}" if unit == "B" else f"{value_bytes:.1f} {unit}"
        value_bytes /= 1000
    return f"{value_bytes:.1f} GB"


def ratio(value: float) -> str:
    """`58 : 1`."""
    return f"{value:.1f} : 1" if value < 10 else f"{value:.0f} : 1"


def curve(values: Sequence[float | None], width: int) -> str:
    """The last values as a row of bars from zero to the highest; a blank for None."""
    shown = values[-width:]
    highest = max((value for value in shown if value is not None), default=0.0)
    if highest <= 0:
        return "".join(" " if value is None else _BARS[0] for value in shown)
    return "".join(" " if value is None else _BARS[round(value / highest * (len(_BARS) - 1))] for value in shown)
