"""Draws the pipeline of spark_integration/README.md: `python -m tests.programs.pictures.pipeline`.

The picture follows from the first YAML block of that page: a box for each job, its input and its output, around the
topics that the workers keep.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "spark_integration" / "README.md"
FILE: Final = ROOT / "processor" / "docs" / "pictures" / "pipeline.svg"

WIDTH: Final = 920
ROW: Final = 62
TOP: Final = 52
JOB, TOPIC, PLACE = "#dcfce7", "#fef9c3", "#e0f2fe"
INK, LINE, NOTE = "#0f172a", "#334155", "#475569"
MONO: Final = 'font-family="ui-monospace, Menlo, monospace"'

# Left edges and widths of the columns: input, ingest, topics, output jobs, outputs.
INPUT, INGEST, FAMILY, OUTPUT_JOB, OUTPUT = (16, 120), (166, 134), (340, 196), (586, 134), (760, 144)


def pipeline() -> dict[str, Any]:
    """The jobs of the page's first YAML block, by name."""
    block = re.search(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None, "the page has a pipeline"
    return dict(yaml.safe_load(block[1])["jobs"])


def target(job: dict[str, Any]) -> tuple[str, str, str]:
    """Name, note and color of a job's output."""
    if job["job"] == "features":
        return job["topic"], "changed rows only", TOPIC
    to = job["to"]
    kind = {"archive": "each record", "table": "each version" if job.get("kind") == "scd2" else "each key"}
    return to.get("table") or to["path"], f"{to['format']}: {kind[job['job']]}", PLACE


class Drawing:
    """Shapes and texts of an SVG, in the order in which they were added."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._shapes: list[str] = []

    def box(self, column: tuple[int, int], middle: float, fill: str, texts: Sequence[str], height: int = 44) -> None:
        """Add a box with a name in its middle, and a smaller note below the name."""
        x, width = column
        self._shapes.append(
            f'<rect x="{x}" y="{middle - height / 2:g}" width="{width}" height="{height}" rx="6" fill="{fill}" '
            f'stroke="{LINE}" stroke-width="1.2"/>'
        )
        name, *notes = texts
        self.text(x + width / 2, middle + (-2 if notes else 5), name, f"{MONO} font-size='13'".replace("'", '"'))
        for note in notes:
            self.text(x + width / 2, middle + 14, note, f'font-size="11" fill="{NOTE}"')

    def text(self, x: float, y: float, text: str, style: str) -> None:
        """Add a text around a place."""
        self._shapes.append(f'<text x="{x:g}" y="{y:g}" text-anchor="middle" {style}>{escape(text)}</text>')

    def arrow(self, begin: tuple[float, float], end: tuple[float, float], style: str = "") -> None:
        """Add a curve with a tip at its end."""
        (x0, y0), (x1, y1) = begin, end
        half = (x1 - x0) / 2
        self._lines.append(f'<path d="M{x0:g} {y0:g}c{half:g} 0 {half:g} {y1 - y0:g} {x1 - x0:g} {y1 - y0:g}"{style}/>')

    def loop(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Add a curve to the left, around the boxes between two places."""
        (x0, y0), (x1, y1) = begin, end
        self._lines.append(f'<path d="M{x0:g} {y0:g}c-26 0 -26 {y1 - y0:g} {x1 - x0:g} {y1 - y0:g}"/>')

    def svg(self, height: float, title: str) -> str:
        """The file."""
        fonts = 'font-family="ui-sans-serif, Helvetica, Arial, sans-serif"'
        shape = 'viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto"'
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" {fonts} fill="{INK}">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height:g}" rx="10" fill="#ffffff"/>',
            f'<defs><marker id="tip" {shape}><path d="M0 0 10 5 0 10z" fill="{NOTE}"/></marker></defs>',
            f'<g fill="none" stroke="{NOTE}" stroke-width="1.6" marker-end="url(#tip)">',
            *self._lines,
            "</g>",
            *self._shapes,
            "</svg>",
            "",
        ])  # fmt: skip


def draw(jobs: dict[str, Any]) -> str:
    """The picture of a pipeline with one ingest job."""
    (name, ingest), *_ = [(name, job) for name, job in jobs.items() if job["job"] == "ingest"]
    outputs = {name: job for name, job in jobs.items() if job["job"] != "ingest"}
    family, drawing = ingest["topic"], Drawing()
    rows = [TOP + ROW / 2 + ROW * number for number in range(len(outputs))]
    middle = (rows[0] + rows[-1]) / 2
    for x, width, text in ((*INGEST, "on Spark"), (*FAMILY, "in Kafka"), (*OUTPUT_JOB, "on Spark")):
        drawing.text(x + width / 2, 28, text, f'font-size="12" fill="{NOTE}"')
    publish, worker, sow, delta = (middle + offset for offset in (-81, -27, 27, 81))
    drawing.box(INPUT, publish, PLACE, [ingest["from"]["path"], ingest["from"]["format"]])
    drawing.box(INGEST, publish, JOB, [name, "ingest"])
    drawing.box(FAMILY, publish, TOPIC, [f"{family}.publish"], 32)
    drawing.box(FAMILY, worker, JOB, ["workers", "merge, exactly once"], 40)
    drawing.box(FAMILY, sow, TOPIC, [f"{family}.sow"], 32)
    drawing.box(FAMILY, delta, TOPIC, [f"{family}.delta"], 32)
    inner = FAMILY[0] + FAMILY[1] / 2
    drawing.arrow((INPUT[0] + INPUT[1], publish), (INGEST[0], publish))
    drawing.arrow((INGEST[0] + INGEST[1], publish), (FAMILY[0], publish))
    drawing.arrow((inner, publish + 16), (inner, worker - 20))
    drawing.arrow((inner, worker + 20), (inner, sow - 16))
    drawing.loop((FAMILY[0], worker), (FAMILY[0], delta))
    if "quarantine" in ingest:
        drawing.box(INPUT, delta, PLACE, [ingest["quarantine"], "rows that do not fit"])
        drawing.arrow((INGEST[0] + 20, publish + 22), (INPUT[0] + INPUT[1], delta), ' stroke="#b91c1c"')
    right = FAMILY[0] + FAMILY[1]
    for row, (name, job) in zip(rows, outputs.items(), strict=True):
        drawing.box(OUTPUT_JOB, row, JOB, [name, job["job"]])
        drawing.box(OUTPUT, row, target(job)[2], list(target(job)[:2]))
        drawing.arrow((OUTPUT_JOB[0] + OUTPUT_JOB[1], row), (OUTPUT[0], row))
        kinds = {"archive": [publish, delta], "features": [sow]}
        for source in kinds.get(job["job"], [delta if job.get("kind") == "scd2" else sow]):
            drawing.arrow((right, source), (OUTPUT_JOB[0], row))
    title = f"Files become deltas of {family}; workers merge them; jobs write an archive, tables and features"
    return drawing.svg(max(rows[-1] + ROW / 2, delta + 40) + 8, title)


def main() -> None:
    """Write the picture."""
    FILE.write_text(draw(pipeline()), encoding="utf-8")
    print(FILE)


if __name__ == "__main__":
    main()
