"""The tables of processor/filter/README.md agree with the code."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from processor.errors import FilterError
from processor.filter import RecordMetadata, arithmetic, compile_expression, compile_filter, limits
from processor.filter.functions import BUILT_IN, GROUP
from processor.filter.grammar import GRAMMAR

FOLDER = Path(__file__).parents[2] / "processor" / "filter"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")

RECORD = {"qty": 10, "state": "new", "tags": ["a", "b"], "legs": [{"px": 5}, {"px": 6}]}
FACTS = RecordMetadata(
    message_bytes=120, sow_key="7", topic="orders", correlation_id="c1", last_updated_ms=1_700_000_000_500
)


def rows(section):
    """The rows of the tables under a heading, without their head rows."""
    text = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line.strip().strip("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [row for row, below in zip(cells, [*cells[1:], [""]], strict=True) if "---" not in row[0] + below[0]]


EXAMPLES = [
    (row[-2].strip("`"), row[-1])
    for section in ("Operators", "NULL", "Numbers and texts", "Arrays", "Functions", "The same on every machine")
    for row in rows(section)
]


@pytest.mark.parametrize(("example", "result"), EXAMPLES)
def test_every_example_has_the_documented_value(example, result):
    """Every example has the documented value and type for the record above."""
    expected = compile_expression(result).value({})
    value = compile_expression(example).value(RECORD, FACTS)
    assert value == expected
    assert type(value) is type(expected)


def test_there_are_examples_of_everything():
    """The README has more than eighty examples."""
    assert len(EXAMPLES) > 80


def test_every_function_has_its_row_with_its_arguments():
    """The README lists exactly the built-in functions with their number of arguments."""
    documented = {}
    for row in rows("Functions"):
        for name, arguments in re.findall(r"`([A-Z0-9_]+)\((.*?)\)`", row[0]):
            parameters = [argument for argument in arguments.split(", ") if argument]
            least, most = documented.get(name, (99, 0))
            count = len(parameters) - (parameters[-1:] == ["…"])
            documented[name] = (min(least, count), None if parameters[-1:] == ["…"] else max(most, count))
    assert documented.pop("IF") == (3, 3)
    assert documented == {name: (function.least, function.most) for name, function in BUILT_IN.items()}


def test_every_keyword_of_the_grammar_is_documented():
    """Every keyword and operator of the grammar occurs in the README."""
    keywords = set(re.findall(r"/(?:%\|)?(\w+)\\b/i", GRAMMAR))
    assert len(keywords) > 12
    assert {word.upper() for word in keywords} <= set(re.findall(r"[A-Z]+", TEXT))
    operators = set(re.findall(r"`([^`]+)`", "".join(row[0] for row in rows("Operators"))))
    assert {"=", "==", "!=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "MOD"} <= operators


def test_the_limits_are_those_of_the_code():
    """The limits in the README equal those in the code."""
    assert [int(row[1].replace(",", "")) for row in rows("Errors and limits")] == [
        limits.CHARACTERS_MAX,
        limits.TOKENS_MAX,
        limits.DEPTH_MAX,
        limits.PATTERN_BYTES_MAX,
        limits.PATTERN_CHARACTERS_MAX,
        limits.STEPS_ORDINARY_MAX,
        limits.STEPS_MAX,
        limits.MADE_CHARACTERS_MAX,
        limits.NUMBER_CHARACTERS_MAX,
        limits.DIGITS_MAX,
        limits.FORMAT_CHARACTERS_MAX,
        len(str(arithmetic._INTEGER_END)) - 1,
    ]


def test_the_filters_at_the_top_are_filters():
    """The filters at the top of the README compile."""
    [block] = re.findall(r"```\n(/state.*?)```", TEXT, re.DOTALL)
    assert [compile_filter(line).text for line in block.splitlines()] == block.splitlines()


def test_the_error_in_the_readme_is_the_actual_one():
    """The error message in the README is the actual one, word for word."""
    [block] = re.findall(r"```\n(filter, line.*?)```", TEXT, re.DOTALL)
    with pytest.raises(FilterError) as caught:
        compile_filter("/qty > > 10")
    assert str(caught.value) == block.rstrip()


def test_the_function_that_an_author_would_copy_runs():
    """The example function of the README runs, and its entry point group is the one that is loaded."""
    [code] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    value = {}
    exec(code, value)
    assert value["basis_points"](101, 100) == 100
    assert value["basis_points"](101, None) is None
    assert f"`{GROUP}`" in TEXT


def test_every_file_and_name_in_the_readme_exists():
    """Every file and name in the README exists."""
    named = re.findall(r"`(\w+\.py|\w+/)`", TEXT)
    assert named
    assert [name for name in named if not (FOLDER / name).exists()] == []
    package = import_module("processor.filter")
    for name in ("Filter", "Expression", "RecordMetadata", "compile_filter", "compile_expression"):
        assert f"`{name}" in TEXT
        assert hasattr(package, name)
