"""The tables of processor/docs/reference agree with the code."""

import re
from pathlib import Path

from prometheus_client import REGISTRY

import processor.runtime.metrics
from processor.runtime.metrics import Timings
from processor.store.marks import MARK_FORGOTTEN, ONE_SHOT_FORGOTTEN
from processor.wire.headers import Name
from tests.docs.pages import page

ROOT = Path(__file__).parents[2]
FILLER = ROOT / "processor" / "queues" / "filler.py"
BUILTIN = "".join(
    path.read_text(encoding="utf-8") for path in [*(ROOT / "processor" / "builtin").rglob("*.py"), FILLER]
)
TASK = (ROOT / "processor" / "runtime" / "hosted_processor.py").read_text(encoding="utf-8")
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
