"""The notebook of the Python client was run as it stands, and running it again has the same results."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from processor.cli.main import run as run_command
from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILE = ROOT / "processor" / "docs" / "examples" / "notebooks" / "live_view.ipynb"
PAGE = ROOT / "processor" / "docs" / "how-to" / "frames-and-notebooks.md"


def code_cells() -> list[dict[str, Any]]:
    """The cells with code, in their order."""
    cells = json.loads(FILE.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def run(cell: dict[str, Any], names: dict[str, Any]) -> dict[str, str] | None:
    """Run a cell as a kernel does; return the forms of its last expression's value, or None."""
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, FILE.name, "exec"), names)
    value = None if last is None else eval(compile(ast.Expression(last.value), FILE.name, "eval"), names)
    if value is None:
        return None
    html = getattr(value, "_repr_html_", None)
    return {"text/plain": repr(value)} if html is None else {"text/html": html()}


def test_it_was_run_as_it_stands() -> None:
    """All cells were run in their order, none failed, and the picture is shown by the page."""
    cells = code_cells()
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output["output_type"] == "execute_result" for cell in cells for output in cell["outputs"])
    assert FILE.with_suffix(".svg").read_text(encoding="utf-8").count("<path") > 20
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"\((\S*live_view\.\w+)\)", page)) == {
        "../examples/notebooks/live_view.ipynb",
        "../examples/notebooks/live_view.svg",
    }


@pytest.fixture
def topic(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[str]:
    """A topic as the notebook expects it, with a worker."""
    world = World(bootstrap, tmp_path, f"{unique}_base", others={unique: {"key": ["/id"], "partitions": 1}})
    assert run_command(["topics", "apply", "-c", str(world.file)]) == 0  # The notebook has Kafka's address alone.
    world.start()
    yield unique
    world.close()


@pytest.mark.long
@pytest.mark.broker
def test_running_it_again_has_the_same_results(
    topic: str, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell that has a result in the file has the same one today, and the picture is drawn."""
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    matplotlib.use("svg")
    monkeypatch.setenv("KAFKA", bootstrap)
    monkeypatch.setenv("TOPIC", topic)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    compared = 0
    try:
        for cell in code_cells():
            result = run(cell, names)
            (output,) = cell["outputs"] or [None]
            assert (result is None) == (output is None)
            for kind, text in (result or {}).items():
                compared += 1
                assert re.sub(r"\s+", " ", text) == re.sub(r"\s+", " ", "".join(output["data"][kind]))
    finally:
        names["client"].close()
    assert compared == 4
    assert (tmp_path / "live_view.svg").exists()
