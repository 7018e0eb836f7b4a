import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.programs.benchmarks.chart import draw_soak, draw_throughput, throughput_of
from tests.programs.benchmarks.soak_figures import Sample

FIGURES = {
    "sowstream": [{"records_per_s": 120_000.0}, {"records_per_s": 118_000.0}, {"records_per_s": 125_000.0}],
    "pass-through": [{"records_per_s": 240_000.0}],
    "Kafka Streams": [],
}


def texts(file: Path) -> str:
    """The texts of a chart, in the order of the file."""
    return " | ".join(element.text or "" for element in ET.parse(file).iter("{http://www.w3.org/2000/svg}text"))


def test_the_chart_names_each_program_and_its_median(tmp_path: Path):
    """The chart has the name and median of each program with rounds, and no other program."""
    draw_throughput(FIGURES, tmp_path / "chart.svg")
    chart_texts = texts(tmp_path / "chart.svg")
    assert "pass-through | sowstream" in chart_texts
    assert "120,000" in chart_texts
    assert "Kafka Streams" not in chart_texts


def test_the_same_figures_make_the_same_chart(tmp_path: Path):
    """The same figures give the same chart, so that a new drawing shows no difference."""
    for name in ("one.svg", "other.svg"):
        draw_throughput(FIGURES, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_a_soak_is_drawn_over_its_time(tmp_path: Path):
    """The chart of a soak has memory and lag over time, one above the other."""
    draw_soak([Sample(60.0 * at, 100.0 + at, 5.0, 1.0) for at in range(5)], tmp_path / "soak.svg")
    assert {"resident memory, MB", "lag, records", "minutes"} <= set(texts(tmp_path / "soak.svg").split(" | "))


@pytest.mark.parametrize("report", [FIGURES, {"programs": {"throughput": {"figures": FIGURES}}}])
def test_both_kinds_of_file_are_read(report: dict[str, Any]):
    """The throughput is read from its own file and from the suite's."""
    assert throughput_of(report) is FIGURES


@pytest.mark.parametrize("report", [{}, {"programs": {}}, {"worker": [{"records_per_s": 1.0}]}])
def test_a_file_without_throughput_is_refused(report: dict[str, Any]):
    """A file without throughput is refused with the command that measures it."""
    with pytest.raises(SystemExit, match=r"tests\.programs\.benchmarks\.throughput"):
        throughput_of(report)
