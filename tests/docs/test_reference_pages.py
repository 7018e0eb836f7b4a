"""The pages of reference, the glossary, the pictures and the public modules are complete."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import yaml
from prometheus_client import REGISTRY

import processor.runtime.metrics
from processor.kafka.connection_faults import Fault, Kind
from processor.runtime.metrics import Timings
from processor.store.marks import MARK_FORGOTTEN, ONE_SHOT_FORGOTTEN
from processor.wire.headers import Name
from tests.docs.pages import PAGES, ROOT, page
from tests.programs.pictures import pipeline

FILLER = ROOT / "processor" / "queues" / "filler.py"
BUILTIN = "".join(
    path.read_text(encoding="utf-8") for path in [*(ROOT / "processor" / "builtin").rglob("*.py"), FILLER]
)
TASK = "".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "processor" / "runtime").glob("*.py")))
METRICS = page("reference/metrics.md")


def first_column(text: str) -> str:
    """The first cells of all tables in a page."""
    return "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))


def test_every_metric_is_listed_with_its_labels():
    """The metrics page has the metrics of the catalogue, each with its labels, and no others."""
    assert processor.runtime.metrics.CONSUMED
    registered = {}
    for collector in list(REGISTRY._collector_to_names):
        name = getattr(collector, "_name", "")
        if name.startswith("sowstream_"):
            suffix = "_total" if collector._type == "counter" else ""
            registered[name + suffix] = ",".join(collector._labelnames)
    for timings in REGISTRY._collector_to_names:
        if isinstance(timings, Timings):
            registered[timings.name] = ",".join(timings.labels)
    assert dict(re.findall(r"`(sowstream_\w+)(?:\{([\w,]+)\})?`", first_column(METRICS))) == registered


def test_every_event_is_listed():
    """The metrics page has the events that the built-in processors, their tasks and marks count, and no others."""
    listed = set(re.findall(r"^\| `((?!sowstream_)\w+)` \|", METRICS, re.MULTILINE))
    assert listed == {*re.findall(r'context\.count\("(\w+)"', BUILTIN + TASK), MARK_FORGOTTEN, ONE_SHOT_FORGOTTEN}


def test_every_gauge_and_timing_is_listed():
    """The metrics page has the gauges and timings of the built-in processors, and no others."""
    listed = re.findall(r"^\| (gauge|timing) `(\w+)` \|", METRICS, re.MULTILINE)
    gauges = [("gauge", name) for name in re.findall(r'gauge\("(\w+)"', BUILTIN)]
    timings = [("timing", name) for name in re.findall(r'observe\("(\w+)"', BUILTIN)]
    own = processor.runtime.metrics._OWN_GAUGES | processor.runtime.metrics._OWN_TIMINGS
    assert set(own) == {name for _, name in [*gauges, *timings]}
    assert sorted(listed) == sorted([*gauges, *timings])


def test_every_header_is_listed():
    """The headers page has the headers that the code reads or writes, and no others."""
    names = {value for name, value in vars(Name).items() if not name.startswith("_")}
    assert set(re.findall(r"`([\w-]+)`", first_column(page("reference/headers.md")))) == names


def test_every_rule_has_a_test_that_exists():
    """Each row of the table of proofs names existing tests, and the rules 1 to 11 are complete."""
    table = page("reference/rules.md").split("\n## Rules and their proof\n")[1]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")][1:]
    assert {number for rule, _ in rows for number in re.findall(r"^ (\d+) ", rule)} == {str(n) for n in range(1, 12)}
    missing = []
    for rule, proof in rows:
        named = re.findall(r"`(\S+\.py)::(\w+)`", proof)
        assert named, rule
        for file, name in named:
            path = ROOT / "tests" / file
            if not path.exists() or f"def {name}(" not in path.read_text(encoding="utf-8"):
                missing.append(f"{file}::{name}")
    assert missing == []


TERMS = re.findall(r"^\| \*\*([^*]+)\*\* \|", page("glossary.md"), re.MULTILINE)
_BOLD = re.compile(r"(?<=\S )(?<!- )(?<!\| )\*\*((?:SOW|[a-z])[\w-]*(?: [\w-]+){0,3})\*\*")


def test_every_bold_term_of_the_pages_is_explained():
    """A bold term in the middle of a sentence, on the front page or in `processor/`, has a row of the glossary."""
    names = {name.strip("()").lower() for term in TERMS for name in (term, *re.split(r" (?=\()", term))}
    pages = [path for path in PAGES if path == ROOT / "README.md" or ROOT / "processor" in path.parents]
    introduced = {term.lower(): str(path) for path in pages for term in _BOLD.findall(path.read_text(encoding="utf-8"))}
    assert "sow topic" in introduced
    assert {term: path for term, path in introduced.items() if term not in names} == {}


def test_the_terms_are_in_alphabetical_order():
    """Each term occurs once, in alphabetical order."""
    assert sorted(set(TERMS), key=str.lower) == TERMS


_FAULTS_PAGE = Path(__file__).parents[2] / "processor" / "docs" / "reference" / "connection-faults.md"


def test_the_page_lists_each_fault_and_whether_it_is_waited_for() -> None:
    """The table has exactly the kinds of faults, in their order, with their wait."""
    rows = re.findall(r"^\| `(\w+)` \| (yes|no|services) \|", _FAULTS_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    faults = [Fault(kind, "h:1") for kind in get_args(Kind)]
    waits = ["services" if fault.is_wrong_name else "no" if fault.is_final else "yes" for fault in faults]
    assert rows == [(fault.kind, wait) for fault, wait in zip(faults, waits, strict=True)]


def test_the_words_of_each_fault_are_on_the_page() -> None:
    """The table of messages has each kind of fault, in its order, and Sowstream's sentence is that of the code."""
    table = _FAULTS_PAGE.read_text(encoding="utf-8").partition("## Messages")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (.+) \|$", table, re.MULTILINE)
    assert [kind for kind, *_ in rows] == list(get_args(Kind))
    for kind, _, _, words in rows:
        assert Fault(kind, "").to_do.partition("{")[0].partition("(")[0].strip() in words


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


def test_the_hooks_run_the_tools_of_make_lint():
    """Each tool that `make lint` runs is a hook of .pre-commit-config.yaml."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = " ".join(hook["entry"] for repo in config["repos"] for hook in repo["hooks"])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [recipe] = re.findall(r"^lint: .*\n\t.*for check in (.*); do", makefile, re.MULTILINE)
    tools = [" ".join(tool.split()[:2]).removesuffix(" .") for tool in shlex.split(recipe)]
    assert len(tools) == 4
    assert [tool for tool in tools if f".venv/bin/{tool}" not in hooks] == []


def test_the_workflow_runs_the_gate_on_every_supported_python():
    """The workflow calls .ci/run with each Python of the classifiers, and with a newer one that may fail."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["all"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert job["strategy"]["matrix"]["python"] == [*supported, "3.14"]
    assert "3.14" in job["continue-on-error"]
    step = job["steps"][-1]
    assert step["run"] == ".ci/run"
    assert step["env"] == {"PYTHON": "python${{ matrix.python }}"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_make_target_is_documented_in_its_help():
    """Each public target of the Makefile has a help line."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [phony] = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    helped = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert set(phony.split()) == helped
