"""`pip install sowstream` is the client: it works with the packages that the project requires without an extra."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import deque
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from tests.endtoend.world import World

ROOT = Path(__file__).parents[2]
WITHOUT_OTHERS = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent = frozenset(ABSENT)
sys.meta_path.insert(0, Absent())
"""
CLIENT = """
from sowstream import AsyncClient, Client
from sowstream.errors import ConfigurationError
from sowstream.testing import ProcessorTestDriver
import processor.client.gateway.gateway_opener

file, topic = sys.argv[1:]
with Client("desk", file) as client:
    client.publish_many(topic, [{"id": n, "qty": n, "text": "a" * n} for n in range(5)], ack="persisted")
    client.delta_publish(topic, {"id": 3, "text": "b"}, ack="persisted").result(120)
    print(sorted(record["id"] for record in client.records(topic, "/qty > 1 AND /text LIKE '^[ab]+$'")))
    with client.view(topic) as view:
        print(view[3])
    try:
        client.queue("paid")
    except ConfigurationError as error:
        print(error)
"""
COMMAND = "sys.argv[1:] = ['status']; runpy.run_module('sowstream', run_name='__main__')"


def normalized(name: str) -> str:
    """The name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def modules_of_extras() -> list[str]:
    """The modules of all installed packages but those that the project requires without an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    queue = deque((Requirement(text), "") for text in project["dependencies"])
    base = {"sowstream", "pip", "setuptools"}
    seen = set()
    while queue:
        requirement, extra = queue.popleft()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = normalized(requirement.name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            base.add(name)
            try:
                queue += [(Requirement(text), wanted) for text in requires(name) or ()]
            except PackageNotFoundError:
                continue  # Another system's or Python's.
    homes = packages_distributions()
    return sorted(
        module
        for module, owners in homes.items()
        if not base & {re.sub(r"[-_.]+", "-", name).lower() for name in owners}
    )


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program where the packages of the extras are not installed."""
    text = WITHOUT_OTHERS.replace("ABSENT", repr(modules_of_extras())) + program
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_the_client_needs_no_package_of_an_extra(world: World) -> None:
    """It publishes, filters, follows a topic and tests plug-ins; a queue names the extra that it needs."""
    world.start("worker")
    result = run(CLIENT, str(world.file), world.name)
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "[2, 3, 4]",
        "{'id': 3, 'qty': 3, 'text': 'b'}",
        "consumers of queues need kafka: pip install 'sowstream[queues]'",
    ]


def test_the_command_names_the_extra_that_it_needs() -> None:
    """Without the extra `worker` the command ends with exit code 2 and a sentence."""
    result = run(COMMAND)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "sowstream: the commands need typer: pip install 'sowstream[worker]'\n"


def test_the_packages_of_workers_are_among_the_absent_ones() -> None:
    """The two tests above take away what workers, commands and queues need."""
    absent = set(modules_of_extras())
    assert {"typer", "rich", "kafka", "prometheus_client", "starlette", "pyarrow"} <= absent
    assert not absent & {"orjson", "confluent_kafka", "websockets", "rocksdict", "processor", "sowstream"}
