import ast
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from processor.tools.bench import pass_through
from tests.programs.benchmarks import guard
from tests.programs.benchmarks.growth import GROUPS
from tests.programs.benchmarks.suite import PROGRAMS

HERE = Path(__file__).parent
README = (HERE / "README.md").read_text(encoding="utf-8")
GIVEN = {"application.id", "bootstrap.servers", "processing.guarantee", "state.dir"}
"""What the caller says."""


def rows(after: str) -> list[list[str]]:
    """The first table behind a text of the README, without its head; code marks taken off."""
    lines = README.split(after)[1].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|"))
    end = next(number for number, line in enumerate(lines) if number > begin and not line.startswith("|"))
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[begin + 2 : end]]


def documented(after: str) -> dict[str, str]:
    """Each knob, and what it is set to."""
    return {knob: value for knob, _, value, _ in rows(after)}


def number(text: str) -> str:
    """A number of Java's or Python's as the README writes it; other values as they are."""
    return str(eval(text, {})) if re.fullmatch(r"[\d_ <]+", text) else text.strip('"')


def test_the_knobs_of_kafka_streams_are_in_the_readme():
    """All that the program sets, with their values."""
    code = (HERE / "KafkaStreamsMerge.java").read_text(encoding="utf-8")
    put = dict(re.findall(r'config\.put\("([\w.]+)", (.+)\);', code))
    assert documented("\nKafka Streams (`KafkaStreamsMerge.java`") == {
        knob: number(value) for knob, value in put.items() if knob not in GIVEN
    }


def test_the_knobs_of_quix_streams_are_in_the_readme():
    """All that the program sets, with their values; those of its clients under their names."""
    tree = ast.parse((HERE / "quix_merge.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    [made] = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Application"]
    knobs: dict[str, Any] = {}
    for keyword in made.keywords:
        if isinstance(keyword.value, ast.Dict):
            knobs |= {f"{keyword.arg}.{name}": value for name, value in ast.literal_eval(keyword.value).items()}
        elif isinstance(keyword.value, ast.Constant):
            knobs[str(keyword.arg)] = keyword.value.value
    assert documented("\nQuix Streams (`quix_merge.py`") == {knob: str(value) for knob, value in knobs.items()}


def test_the_knobs_of_the_ceiling_are_in_the_readme():
    """All that it sets, with their values."""
    assert documented("\nThe pass-through ceiling (") == {**pass_through._READER, **pass_through._WRITER}


def test_every_program_of_the_suite_is_in_the_readme():
    """In the order in which they run."""
    assert [name for name, _, _ in rows("\n## All of it")] == list(PROGRAMS)


def test_every_group_of_growth_is_in_the_readme():
    """In the order in which they run."""
    assert [name for name, _, _ in rows("\n## Growth")] == list(GROUPS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_suite_runs_programs_that_are_there(name: str):
    """And each takes a file for its figures, and the options that it is given."""
    code = (HERE / f"{PROGRAMS[name].module}.py").read_text(encoding="utf-8")
    options = set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', code))
    given = set(re.findall(r"--[a-z-]+", f"{PROGRAMS[name].full} {PROGRAMS[name].quick} --json"))
    assert given <= options


def test_the_guard_says_what_the_readme_says():
    """A tenth, and three rounds."""
    assert (guard.LOSS, guard.ROUNDS_LEAST) == (0.10, 3)
    assert "more than a tenth" in README
    assert "fewer than three rounds" in README


def test_the_readmes_tell_the_accepted_ratios():
    """Those that readers look for: nobody forgets one when new ones are accepted."""
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
