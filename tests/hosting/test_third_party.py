"""Anybody's processor runs like ours: found by entry point, configured by name, hosted by the same task."""

import ast
from pathlib import Path

import pytest

from processor import builtin
from processor.config import Config
from processor.errors import ConfigurationError
from processor.hosting.pipeline import installed, pipelines
from processor.record import Stored
from processor.testing import ProcessorTestDriver
from tests.builtin.reading import told
from tests.runtime.packages import EXAMPLE, install

AUTHORS = [*EXAMPLE.rglob("*.py"), *Path(builtin.__file__).parent.rglob("*.py")]
pytestmark = pytest.mark.usefixtures("example_plugin")


def configured(**section) -> Config:
    """Settings with the example plug-in over a topic of orders."""
    return Config(
        topics={"orders": {"partitions": 2}}, processors={"big": {"use": "large", "underlying": "orders"} | section}
    )


def test_an_installed_package_brings_its_processor():
    """Beside the built-in ones, which come in the same way."""
    assert {"large", "delta_merge", "conflate"} <= installed().keys()
    assert installed()["large"].__module__ == "example_plugin.large"


def test_a_section_of_the_settings_makes_it_a_pipeline():
    """It reads the topic under it and writes a family of its own; its settings are what its model makes of them."""
    [pipeline] = pipelines(configured(settings={"at_least": "5"}), ["big"])
    assert pipeline.processor_type is installed()["large"]
    assert (pipeline.source, pipeline.roles) == ("orders.sow", ("sow", "mark", "dlq"))
    assert pipeline.settings.model_dump() == {"field": "qty", "at_least": 5}
    assert pipeline.topic.partitions == 2


def test_it_runs_in_the_driver():
    """Copies come, change and go; what it left out is counted; after a crash it goes on where it was."""
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
        (b"1", b'{"qty":9}', {"version": "1"}),
        (b"1", b'{"qty":7}', {"version": "2"}),
        (b"3", b'{"qty":5}', {"version": "1"}),
        (b"1", None, {"version": "3"}),
        (b"3", None, {"version": "2"}),
        (b"3", b'{"qty":6}', {"version": "1"}),
    ]
    assert driver.state.get_many([b"1", b"3"]) == {b"1": None, b"3": Stored(1, b'{"qty":6}')}
    assert driver.events == {"left_out": 1}


def test_a_record_it_rejects_or_stumbles_over_is_put_aside_alone():
    """Rejected with its own reason, or as the plug-in's failure; the records around it are copied."""
    driver = ProcessorTestDriver(installed()["large"], {"at_least": 5}, name="big", underlying="orders")
    records = [("1", {"qty": 9}), (None, {"qty": 9}), ("2", {"qty": "many"}), ("3", b"{"), ("4", {"qty": 9})]
    driver.pipe_batch([(key, value, None) for key, value in records])
    driver.commit()
    assert [record.key for record in driver.read_output("sow")] == [b"1", b"4"]
    rejected = {record.key: told(record) for record in driver.read_output("dlq")}
    assert {key: headers["dlq_reason"] for key, headers in rejected.items()} == {
        None: "missing_key",
        b"2": "plugin_failed",
        b"3": "undecodable",
    }
    assert rejected[b"2"]["dlq_detail"].startswith("Large raised TypeError: ")
    assert rejected[b"2"]["source"] == "orders.sow/0/2"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"settings": {"at_least": 5, "feild": "n"}},
            r"processors.big.settings.feild: there is no setting 'feild'; did you mean 'field'\?",
        ),
        ({"settings": {}}, "processors.big.settings.at_least: Field required"),
        ({"settings": {"at_least": "secret!"}}, "processors.big.settings.at_least: Input should be a valid integer"),
        ({"use": "larch"}, r"big: there is no processor 'larch'; did you mean 'large'\?; is its package installed\?"),
        ({"underlying": None}, "processors.big: large needs an `underlying`"),
        ({"use": "delta_merge"}, "processors.big: delta_merge has no use for an `underlying`"),
    ],
)
def test_wrong_settings_are_told_by_their_place(section, message):
    """One line each, with what was meant where that can be guessed; values are not repeated, they may be secret."""
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
    """The message says which one, and what came of it."""
    install(example_plugin, "odd", {"odd": target})
    with pytest.raises(ConfigurationError, match=message):
        installed()


@pytest.mark.parametrize(
    "file", sorted(EXAMPLE.rglob("*.py")) + sorted(Path("processor/builtin").glob("*.py")), ids=str
)
def test_an_author_needs_the_contract_only(file):
    """The example imports nothing of ours but `processor.api`; our own plug-ins, the pure parts besides."""
    allowed = (
        {"processor.api"}
        if EXAMPLE in file.parents
        else {
            "processor." + name
            for name in (
                "api",
                "codec.contract",
                "config",
                "errors",
                "explanation",
                "filter",
                "installed",
                "merge",
                "record",
                "topics",
            )
        }
        | {f"processor.builtin.{path.stem}" for path in Path("processor/builtin").glob("*.py*")}
    )
    tree = ast.parse(file.read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert {module for module in imported if module.startswith("processor")} <= allowed
