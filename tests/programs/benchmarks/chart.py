"""Draws the throughput: `python -m tests.programs.benchmarks.chart FIGURES.json CHART.svg`; the soak too."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.programs.benchmarks.figures import read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tests.programs.benchmarks.figures import Figures
    from tests.programs.benchmarks.soak_figures import Sample

OURS = "sowstream"
ORDER = ("pass-through", OURS, "Kafka Streams", "Quix Streams")
"""The programs from top to bottom: the ceiling, ours, the rivals."""
_OURS_COLOUR, _OTHER_COLOUR, _INK = "#1f6f8b", "#b8c4ca", "#333333"
_STYLE = {
    # Text remains text, and the same figures give the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "sowstream",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def main() -> None:
    """Draw the throughput in one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path, help="what tests.programs.benchmarks.throughput or the whole suite wrote")
    parser.add_argument("chart", type=Path, help="the file to write, .svg or .png")
    arguments = parser.parse_args()
    draw_throughput(throughput_of(read(arguments.figures)), arguments.chart)


def throughput_of(report: dict[str, Any]) -> Figures:
    """The figures of the throughput, from its own file or the suite's.

    Raises:
        SystemExit: the file has none.
    """
    programs = report.get("programs", {"throughput": {"figures": report}})
    figures = programs.get("throughput", {}).get("figures", {})
    if not figures.get(OURS):
        raise SystemExit(
            "no throughput in that file: run python -m tests.programs.benchmarks.throughput --rivals --json FILE"
        )
    return figures


def draw_throughput(figures: Figures, file: Path) -> None:
    """Draw a bar for the median of each program, a line for the range of its rounds, and a dot for each round."""
    import matplotlib as mpl  # Slow: only who draws waits for it.

    names = [name for name in ORDER if figures.get(name)]
    with mpl.rc_context(_STYLE):
        picture, axes = _axes(height=0.55 * len(names) + 0.9)
        for place, name in enumerate(names):
            rates = [figure["records_per_s"] for figure in figures[name]]
            middle = statistics.median(rates)
            axes.barh(place, middle, height=0.62, color=_OURS_COLOUR if name == OURS else _OTHER_COLOUR)
            axes.plot([min(rates), max(rates)], [place, place], color=_INK, linewidth=1)
            axes.plot(rates, [place] * len(rates), "o", color=_INK, markersize=3, markerfacecolor="white")
            axes.annotate(f"{middle:,.0f}", (max(rates), place), (6, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        rounds = len(figures[OURS])
        axes.set_xlabel(f"records/s: the median of {rounds} rounds, and each of them")
        axes.set_xlim(0, 1.15 * max(figure["records_per_s"] for name in names for figure in figures[name]))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        _save(picture, file)


def draw_soak(samples: Sequence[Sample], file: Path) -> None:
    """Draw memory and lag over time, one above the other."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    minutes = [sample.at_s / 60 for sample in samples]
    with mpl.rc_context(_STYLE):
        picture = Figure(figsize=(7, 4), layout="constrained")
        above, below = picture.subplots(2, 1, sharex=True)
        for axes, values, label in (
            (above, [sample.resident_mb for sample in samples], "resident memory, MB"),
            (below, [sample.lag_records for sample in samples], "lag, records"),
        ):
            _plain(axes)
            axes.plot(minutes, values, color=_OURS_COLOUR, linewidth=1)
            axes.set_ylim(0, 1.15 * max(1.0, *values))
            axes.set_ylabel(label)
            axes.yaxis.set_major_formatter("{x:,.0f}")
        below.set_xlabel("minutes")
        _save(picture, file)


def _axes(height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, height), layout="constrained")
    axes = picture.subplots()
    _plain(axes)
    axes.tick_params(axis="y", length=0)
    return picture, axes


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _save(picture: Figure, file: Path) -> None:
    """Save the picture without the time of its drawing, which would change the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
