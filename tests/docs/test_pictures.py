"""The pictures of the pages that follow from a page or from notebooks are there, and are of the present text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.programs.pictures import pipeline

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "spark_integration" / "examples" / "notebooks").glob("*.ipynb"))


def test_the_picture_of_the_pipeline_is_that_of_the_page() -> None:
    """Drawn again from the YAML of the README, the picture is the same file."""
    assert pipeline.FILE.read_text(encoding="utf-8") == pipeline.draw(pipeline.pipeline())


def test_the_picture_has_each_job_and_each_output() -> None:
    """Every job, its input and its output stand in the picture."""
    picture = pipeline.FILE.read_text(encoding="utf-8")
    for name, job in pipeline.pipeline().items():
        place = job["from"]["path"] if job["job"] == "ingest" else pipeline.target(job)[0]
        assert f">{name}<" in picture
        assert f">{place}<" in picture


def test_there_are_three_notebooks() -> None:
    """The notebooks are the three that the README names."""
    page = pipeline.PAGE.read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 3
    assert {f"examples/notebooks/{file.name}" for file in NOTEBOOKS} == set(re.findall(r"\((\S+\.ipynb)\)", page))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_was_run_as_it_stands(file: Path) -> None:
    """All its cells were run in their order and none failed, and its picture is a file that the README shows."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output["output_type"] == "execute_result" for cell in cells for output in cell["outputs"])
    sources = "".join("".join(cell["source"]) for cell in cells)
    (picture,) = re.findall(r'savefig\("(\S+)"\)', sources)
    assert (file.parent / picture).read_text(encoding="utf-8").count("<path") > 20
    assert f"(examples/notebooks/{picture})" in pipeline.PAGE.read_text(encoding="utf-8")
