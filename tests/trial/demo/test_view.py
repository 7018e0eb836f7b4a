"""The demo's display fits the terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from processor.trial.demo.live_view import LiveView, Moment, curve, line, screen
from processor.trial.demo.picture import ConflatedFigures, MergedFigures, Picture
from processor.trial.demo.processes import TableFigures
from processor.trial.demo.watcher import Latency, OrderFollower

LARGE = Picture(
    merged=[MergedFigures(name, 12_000, 12_000, 10**10, 10**9, 10**8, 10**5, 123_456) for name in ("orders", "prices")],
    conflated=[
        ConflatedFigures(name, 1.0, 12_000, 12_000, 10**8, 10**5, [1.0, 99_000.0, 99_000.0])
        for name in ("prices_1s", "orders_2s")
    ],
    p50_ms=99_000.0,
    p99_ms=99_000.0,
    latencies_ms=[float(n) for n in range(36)],
    lags=[None] * 36,
    prices=[{"pair": "EURUSD", "bid": 1.08412, "offer": 1.08425, "spread": 0.00013, "updated": 1}],
    order="123456",
    steps=[],
)
MOMENT = Moment("3599 s of 3600", 3599.0, [("worker 1", True), ("worker 2", False), ("conflate", True)])


def drawn(picture: Picture, table: TableFigures | None = None, width: int = 80) -> list[str]:
    """The lines of the screen, drawn for so many columns."""
    console = Console(width=200, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen(MOMENT, picture, table, width=width))
    return [text.rstrip() for text in capture.get().splitlines()]


def test_the_screen_fits_a_classic_terminal() -> None:
    """The screen has 80 columns and 23 lines, and large numbers are not cut."""
    lines = drawn(LARGE)
    assert max(map(len, lines)) == 80
    assert len(lines) == 23
    assert not [text for text in lines if "…" in text]


@pytest.mark.parametrize(("width", "columns"), [(60, 80), (99, 99), (120, 120), (200, 120)])
def test_the_screen_is_as_wide_as_the_terminal(width: int, columns: int) -> None:
    """Each line fills the terminal, from 80 columns to 120, and nothing moves down."""
    lines = drawn(LARGE, width=width)
    assert max(map(len, lines)) == columns
    assert len(lines) == 23


def test_the_screen_keeps_its_height() -> None:
    """The layout does not move when the first records arrive."""
    empty = LARGE._replace(prices=[], order=None, steps=[], p50_ms=None, p99_ms=None, latencies_ms=[], lags=[])
    assert len(drawn(empty)) == len(drawn(LARGE))


def test_the_table_on_spark_is_a_panel_of_its_own() -> None:
    """With a table on Spark the screen has four more lines, as wide as the others, and large numbers are not cut."""
    table = TableFigures(9_999, 999.9, 999_999, dict.fromkeys(("new", "held", "filled", "cancelled"), 99_999))
    lines = [text.rstrip() for text in drawn(LARGE, table)]
    assert max(map(len, lines)) == 80
    assert len(lines) == 27
    assert not [text for text in lines if "…" in text]
    assert "999,999" in lines[-2]
    assert "on Spark 999999 rows, batch 9999" in line(MOMENT, LARGE, table)


def test_an_unknown_value_is_a_dash() -> None:
    """An unknown value is a dash, for example while the conflater starts."""
    silent = LARGE._replace(conflated=[each._replace(late_ms=[None] * 3) for each in LARGE.conflated])
    [known], [unknown] = ([text for text in drawn(picture) if "prices_1s" in text] for picture in (LARGE, silent))
    assert known.strip("│ ").split()[-6:] == ["1", "ms", "99.0", "s", "99.0", "s"]
    assert unknown.strip("│ ").split()[-4:] == ["1", "-", "-", "-"]


def test_without_a_terminal_there_are_plain_lines() -> None:
    """A log gets no control characters, and names the workers that are down."""
    console = Console(file=io.StringIO())
    with LiveView(console) as view, console.capture() as capture:
        view.show(MOMENT, LARGE)
    assert capture.get() == f"{line(MOMENT, LARGE)}\n"
    assert "\x1b" not in capture.get()
    assert "worker 2 is down" in capture.get()


@pytest.mark.parametrize("share", [0.5, 0.99, 1.0])
def test_a_quantile_is_at_most_five_percent_off(share: float) -> None:
    """The buckets are narrow enough for the displayed precision."""
    latency = Latency()
    for milliseconds in range(1, 10_001):
        latency.add(100.0, float(milliseconds))
    (found,) = latency.all_ms(share)
    assert found == pytest.approx(10_000 * share, rel=0.06)
    assert latency.recent_ms(105.0, share) == [found]
    assert latency.recent_ms(111.0, share) == [None]


def test_a_curve_goes_from_zero_to_the_highest() -> None:
    """A moment without a value is blank, and only the last values are drawn."""
    assert curve([9.0, 0.0, None, 7.0], 3) == "▁ █"


def test_an_order_is_followed_to_its_end() -> None:
    """Another order is followed only after this one is finished and was shown for a while."""
    follow = OrderFollower()
    whole, filled = json.dumps({"id": 1}).encode(), b'{"id":1,"state":"filled"}'
    follow.take(0.0, "1", whole, "insert", None)
    follow.take(1.0, "2", whole, "insert", None)
    follow.take(2.0, "1", filled, "update", None)
    follow.take(3.0, "2", whole, "insert", None)
    assert (follow.key, [step.after_s for step in follow.steps]) == ("1", [0.0, 2.0])
    follow.take(9.0, "3", whole, "insert", None)
    assert follow.key == "3"
