import ast
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from processor.trial.bench import pass_through
from tests.programs.benchmarks import guard
from tests.programs.benchmarks.growth import GROUPS
from tests.programs.benchmarks.suite import PROGRAMS

HERE = Path(__file__).parent
README = (HERE / "README.md").read_text(encoding="utf-8")
GIVEN = {"application.id", "bootstrap.servers", "processing.guarantee", "state.dir"}
"""The settings that the caller passes."""


def rows(after: str) -> list[list[str]]:
    """The first table after a text of the README, without its head and without code marks."""
    lines = README.split(after)[1].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|"))
    end = next(number for number, line in enumerate(lines) if number > begin and not line.startswith("|"))
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[begin + 2 : end]]


def documented(after: str) -> dict[str, str]:
    """The documented value of each setting."""
    return {knob: value for knob, _, value, _ in rows(after)}


def number(text: str) -> str:
    """A number of Java's or Python's in the README's spelling; other values unchanged."""
    return str(eval(text, {})) if re.fullmatch(r"[\d_ <]+", text) else text.strip('"')


def test_the_knobs_of_kafka_streams_are_in_the_readme():
    """The README has all settings that the Kafka Streams program sets, with their values."""
    code = (HERE / "KafkaStreamsMerge.java").read_text(encoding="utf-8")
    put = dict(re.findall(r'config\.put\("([\w.]+)", (.+)\);', code))
    assert documented("\nKafka Streams (`KafkaStreamsMerge.java`") == {
        knob: number(value) for knob, value in put.items() if knob not in GIVEN
    }


def test_the_knobs_of_quix_streams_are_in_the_readme():
    """The README has all settings that the Quix Streams program sets, those of its clients under their names."""
    tree = ast.parse((HERE / "quix_merge.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    [application] = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Application"]
    knobs: dict[str, Any] = {}
    for keyword in application.keywords:
        if isinstance(keyword.value, ast.Dict):
            knobs |= {f"{keyword.arg}.{name}": value for name, value in ast.literal_eval(keyword.value).items()}
        elif isinstance(keyword.value, ast.Constant):
            knobs[str(keyword.arg)] = keyword.value.value
    assert documented("\nQuix Streams (`quix_merge.py`") == {knob: str(value) for knob, value in knobs.items()}


def test_the_knobs_of_the_ceiling_are_in_the_readme():
    """The README has all settings that the ceiling sets, with their values."""
    assert documented("\nThe pass-through ceiling (") == {**pass_through._READER, **pass_through._WRITER}


def test_every_program_of_the_suite_is_in_the_readme():
    """The README has all programs of the suite, in the order in which they run."""
    assert [name for name, _, _ in rows("\n## All of it")] == list(PROGRAMS)


def test_every_group_of_growth_is_in_the_readme():
    """The README has all groups of growth, in the order in which they run."""
    assert [name for name, _, _ in rows("\n## Growth")] == list(GROUPS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_the_suite_exist(name: str):
    """Each program of the suite exists, and accepts a file for its figures and its options."""
    code = (HERE / f"{PROGRAMS[name].module}.py").read_text(encoding="utf-8")
    options = set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', code))
    options_used = set(re.findall(r"--[a-z-]+", f"{PROGRAMS[name].full} {PROGRAMS[name].quick} --json"))
    assert options_used <= options


def test_the_guard_has_the_limits_in_the_readme():
    """The README has the guard's limits: a tenth, and three rounds."""
    assert (guard.LOSS, guard.ROUNDS_LEAST) == (0.10, 3)
    assert "more than a tenth" in README
    assert "fewer than three rounds" in README


def test_the_readmes_have_the_accepted_ratios():
    """The READMEs have the accepted ratios that readers look for."""
    rounds = json.loads((HERE / "accepted.json").read_text(encoding="utf-8"))["ratios"]
    middle = {name: statistics.median(values) for name, values in rounds.items()}
    front = " ".join((HERE.parents[2] / "README.md").read_text(encoding="utf-8").split())
    here = " ".join(README.split())
    faster = f"**{middle['throughput: sowstream / Kafka Streams, records_per_s']:.2f} times Kafka Streams**"
    work = 1 / middle["throughput: Kafka Streams / sowstream, cpu_s_per_million"]
    assert faster in front
    assert faster in here
    assert f"{work:.2f} of its processor time" in front
    assert f"**{1 / middle['growth: keys 10000000 / keys 10000, records_per_s']:.2f}** (goal 2" in here
    assert f"**{1 / middle['growth: partitions 64 / partitions 1, records_per_s']:.2f}** (goal 1.15" in here
    assert f"**{middle['growth: held 2 / held 1, records_per_s']:.2f}** times the throughput" in here
