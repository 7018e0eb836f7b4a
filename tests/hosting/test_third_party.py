"""A third party's processor runs like a built-in one: found by entry point, configured by name, hosted by a task."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from processor import builtin
from processor.cli.main import run as run_command
from processor.config import Config
from processor.errors import ConfigurationError
from processor.hosting.plugins import installed
from processor.installation.configured_pipelines import pipelines
from processor.record import Stored
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import told
from tests.hosting.packages import EXAMPLE, install

PACKAGE = EXAMPLE / "example_plugin"
BUILTIN = Path(builtin.__file__).parent
PURE = {
    "api",
    "builtin",
    "codec",
    "config",
    "entry_points",
    "errors",
    "filter",
    "merge",
    "record",
    "topics",
    "values",
    "wire",
}
"""The parts of Sowstream that a built-in processor may import."""

pytestmark = pytest.mark.usefixtures("example_plugin")


def configured(**section) -> Config:
    """Settings with the example plug-in over a topic of orders."""
    return Config(
        topics={"orders": {"partitions": 2}}, processors={"big": {"use": "large", "underlying": "orders"} | section}
    )


def test_an_installed_package_brings_its_processor():
    """The processors of an installed package are listed with the built-in ones, found in the same way."""
    assert {"large", "delta_merge", "conflate"} <= installed().keys()
    assert installed()["large"].__module__ == "example_plugin.large"


def test_a_section_of_the_settings_makes_it_a_pipeline():
    """The pipeline reads the underlying topic, writes a family of its own, and has validated settings."""
    [pipeline] = pipelines(configured(settings={"at_least": "5"}), ["big"])
    assert pipeline.processor_type is installed()["large"]
    assert (pipeline.source, pipeline.roles) == ("orders.sow", ("sow", "alerts", "mark", "dlq"))
    assert pipeline.settings.model_dump() == {"field": "qty", "at_least": 5, "alert_at": None}
    assert pipeline.topic.partitions == 2


def test_an_installed_processor_runs_in_the_driver():
    """Copies are inserted, updated and deleted, and a crash changes none of it."""
    driver = ProcessorTestDriver(installed()["large"], {"at_least": 5}, name="big", underlying="orders")
    for key, qty in (("1", 9), ("2", 4), ("1", 7), ("3", 5)):
        driver.pipe_input(key, {"qty": qty}, {"version": "1"})
    driver.commit()
    driver.crash()
    driver.pipe_input("1", {"qty": 1})
    driver.pipe_input("3", None)
    driver.pipe_input("3", {"qty": 6})
    driver.commit()
    assert [(record.key, record.value, told(record)) for record in driver.read_output("sow")] == [
        (b"1", b'{"qty":9}', {"version": "1", "kind": "insert"}),
        (b"1", b'{"qty":7}', {"version": "2"}),
        (b"3", b'{"qty":5}', {"version": "7", "kind": "insert"}),
        (b"1", None, {"version": "3", "kind": "delete"}),
        (b"3", None, {"version": "8", "kind": "delete"}),
        (b"3", b'{"qty":6}', {"version": "13", "kind": "insert"}),
    ]
    assert driver.state.get_many([b"1", b"3"]) == {b"1": None, b"3": Stored(13, b'{"qty":6}')}
    assert driver.events == {"left_out": 1}


def test_a_record_that_a_processor_rejects_or_fails_on_is_a_dead_letter_alone():
    """The dead letter has the plug-in's reason or `plugin_failed`; the records around it are copied."""
    driver = ProcessorTestDriver(installed()["large"], {"at_least": 5}, name="big", underlying="orders")
    records = [
        ("1", {"qty": 9}),
        (None, {"qty": 9}),
        ("2", {"qty": "many"}),
        ("3", b"{"),
        ("5", b"[]"),
        ("4", {"qty": 9}),
    ]
    driver.pipe_batch([(key, value, None) for key, value in records])
    driver.commit()
    assert [record.key for record in driver.read_output("sow")] == [b"1", b"4"]
    rejected = {record.key: told(record) for record in driver.read_output("dlq")}
    assert {key: headers["dlq_reason"] for key, headers in rejected.items()} == {
        None: "missing_key",
        b"2": "no_number",
        b"3": "undecodable",
        b"5": "plugin_failed",
    }
    assert rejected[b"5"]["dlq_detail"].startswith("Large raised AttributeError: ")
    assert rejected[b"2"]["source"] == "orders.sow/0/2"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"settings": {"at_least": 5, "feild": "n"}},
            r"processors.big.settings.feild: there is no setting 'feild'; did you mean 'field'\?",
        ),
        ({"settings": {}}, "processors.big.settings.at_least: missing; it is required"),
        ({"settings": {"at_least": "secret!"}}, "processors.big.settings.at_least: Input should be a valid integer"),
        ({"use": "larch"}, r"big: there is no processor 'larch'; did you mean 'large'\?; is its package installed\?"),
        ({"underlying": None}, "processors.big: large needs an `underlying`"),
        ({"use": "delta_merge"}, "processors.big: delta_merge has no use for an `underlying`"),
    ],
)
def test_wrong_settings_are_reported_with_their_place(section, message):
    """A wrong setting is one line with its path and a suggestion; its value is not repeated, as it may be secret."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        pipelines(configured(**section), ["big"])
    assert "secret!" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("example_plugin.large:LargeSettings", r"processor 'odd' \(.*LargeSettings\): it is not a Processor"),
        ("example_plugin.small:Small", "processor 'odd': example_plugin.small:Small cannot be loaded: No module named"),
        (
            "example_plugin.large:Small",
            "processor 'odd': example_plugin.large:Small cannot be loaded: .*; install what",
        ),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_named(example_plugin, target, message):
    """The error has the name of the entry point, its target, and the reason."""
    install(example_plugin, "odd", {"odd": target})
    with pytest.raises(ConfigurationError, match=message):
        installed()["odd"]


@pytest.mark.parametrize("text", ["class Broken(Nowhere): ...", "def broken(:"], ids=["NameError", "SyntaxError"])
def test_a_module_that_fails_is_an_error_with_its_words(example_plugin, text, capsys):
    """A plug-in's mistake is one sentence with the exception, from the settings and from `sowstream plugins`."""
    (example_plugin / "failing.py").write_text(text)
    install(example_plugin, "odd", {"odd": "failing:Broken"})
    with pytest.raises(
        ConfigurationError, match=r"'odd': failing:Broken cannot be loaded: its module raised \w+Error: "
    ):
        installed()["odd"]
    assert run_command(["plugins"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "\todd\t" in line]
    assert "its module raised" in line


def test_a_broken_plug_in_stops_only_the_topics_that_use_it(example_plugin):
    """Topics of other processors have their pipelines although an installed package cannot be loaded."""
    install(example_plugin, "odd", {"odd": "example_plugin.small:Small"})
    assert [pipeline.name for pipeline in pipelines(configured(settings={"at_least": 5}), [])] == ["orders", "big"]
    with pytest.raises(ConfigurationError, match=r"processor 'odd': .* cannot be loaded"):
        pipelines(configured(use="odd"), ["big"])


@pytest.mark.parametrize("file", [*sorted(PACKAGE.rglob("*.py")), *sorted(BUILTIN.rglob("*.py"))], ids=str)
def test_a_processor_imports_the_contract_and_pure_functions_only(file):
    """The example imports `processor.api` and nothing else of Sowstream; a built-in one also the pure packages."""
    tree = ast.parse(file.read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    ours = {module for module in imported if module.partition(".")[0] in {"processor", "spark_integration"}}
    if PACKAGE in file.parents:
        assert ours <= {"processor.api"}
    else:
        ours -= {"processor.queues.filler"}  # The module of queues that the merge calls; a contract keeps it pure.
        assert {module.split(".")[1] for module in ours if "." in module} <= PURE


def run(arguments, folder, **variables):
    """The output of a program of this Python's, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    return done.stdout + done.stderr, done.returncode


def test_the_tests_of_the_example_package_pass(example_plugin):
    """The package of the documentation is tested as its author would test it."""
    arguments = ["pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", str(EXAMPLE / "tests")]
    text, code = run(arguments, EXAMPLE, PYTHONPATH=str(example_plugin), PYTHONDONTWRITEBYTECODE="1")
    assert code == 0, text
    assert "8 passed" in text


@pytest.mark.long
def test_the_example_package_passes_mypy_in_strict_mode(example_plugin):
    """An output and a reject reason of the plug-in's own, and typed settings, need no cast and no ignore."""
    path = f"{Path.cwd()}:{Path.cwd() / 'processor' / 'facade'}"
    arguments = [
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "-p",
        "example_plugin",
    ]
    text, code = run(arguments, example_plugin, MYPYPATH=path)
    assert code == 0, text


def test_the_example_is_no_part_of_sowstream():
    """The folder of the example cannot be imported from Sowstream's own package."""
    assert not (EXAMPLE / "__init__.py").exists()
    assert not EXAMPLE.name.isidentifier()
