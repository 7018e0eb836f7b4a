"""The time until a command does its work: modules that only others need are not imported."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from processor.cli.main import command_line

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

CODE = """
import json, sys
from processor.cli.main import run
code = run({arguments})
print(json.dumps([code, [name for name in {slow} if name in sys.modules]]))
"""
SLOW = (
    "structlog", "rich.console", "lark", "jgo", "pyarrow", "pandas", "fastavro", "jinja2", "starlette", "rocksdict",
    "processor.client.async_client", "processor.queues.consumer", "processor.client.publish.command_sender",
)  # fmt: skip
OTHER_COMMANDS = ("processor.cli.publish", "processor.cli.topics", "processor.cli.trial")


def imported_by(*arguments: str) -> tuple[int, list[str]]:
    """Run a command in a process of its own, and return its exit code and the slow modules that it imported."""
    code = CODE.format(arguments=list(arguments), slow=SLOW + OTHER_COMMANDS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True)
    exit_code, names = json.loads(done.stdout.splitlines()[-1])
    return exit_code, names


@pytest.mark.parametrize("arguments", [("--version",), ("check", "--schema")])
def test_commands_without_kafka_import_no_slow_module(arguments: tuple[str, ...]):
    """The command line itself imports neither the embedded broker nor the libraries of logs and tables."""
    code, names = imported_by(*arguments)
    assert (code, set(names) & set(SLOW)) == (0, set())


@pytest.mark.broker
def test_readers_import_no_slow_module(cli: Cli, unique: str):
    """`get` and `sow` import neither libraries of logs, tables, filters or stores nor publishers and other commands."""
    assert cli("topics", "apply").returncode == 0
    settings = str(cli.settings)
    assert imported_by("get", unique, "7", "-c", settings) == (1, [])
    assert imported_by("sow", unique, "-c", settings) == (0, [])


@pytest.mark.parametrize("word", ["get", "dlq", "nosuch"])
def test_only_the_command_asked_for_is_built(word: str):
    """A command is built alone; a name that no command has is answered from the names of all of them."""
    app = command_line(["-v", word])
    names = {command.callback.__name__ for command in app.registered_commands if command.callback}
    groups = {group.name for group in app.registered_groups}
    if word == "nosuch":
        assert {"get", "worker"} <= names
        assert "dlq" in groups
    else:
        assert names | groups == {word}


def test_structlog_is_configured_when_it_is_imported_later():
    """A module that imports structlog after logging was set up logs to stderr, as JSON, and not to stdout."""
    code = (
        "from processor.runtime.worker.logging_setup import set_up_logging\n"
        "import sys, logging\n"
        "set_up_logging()\n"
        "assert 'structlog' not in sys.modules\n"
        "import structlog\n"
        "structlog.stdlib.get_logger('sowstream.x').warning('late', a=1)\n"
        "logging.getLogger('sowstream.y').warning('plain', extra={'b': 2})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True)
    assert done.stdout == ""
    late, plain = map(json.loads, done.stderr.splitlines())
    assert (late["event"], late["a"], late["level"]) == ("late", 1, "warning")
    assert (plain["event"], plain["b"]) == ("plain", 2)


def test_classes_that_are_imported_late_are_the_package_s_names():
    """`processor.client` has all names of `__all__`, and says which one it does not have."""
    import processor.client

    assert all(isinstance(getattr(processor.client, name), type) for name in processor.client.__all__)
    with pytest.raises(AttributeError, match=r"module 'processor.client' has no attribute 'Quue'"):
        processor.client.Quue  # noqa: B018
