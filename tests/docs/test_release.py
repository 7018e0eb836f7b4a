"""A release and its versions agree, and a light install has what it needs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import deque
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from packaging.requirements import Requirement

import sowstream
from processor import api
from processor.client import Client
from processor.config import Config

if TYPE_CHECKING:
    from tests.endtoend.world import World


ROOT = Path(__file__).parents[2]


def test_every_link_of_the_page_on_pypi_is_absolute() -> None:
    """Files lead to their page in the repository, pictures to their bytes, and code stays as it is."""
    page = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "pypi-readme"), "https://example.org/sow", "v1"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert "(https://example.org/sow/raw/v1/processor/docs/pictures/overview.svg)" in page
    assert "(https://example.org/sow/blob/v1/CHANGELOG.md)" in page
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"```.*?```", page, re.DOTALL) == re.findall(r"```.*?```", readme, re.DOTALL)


def test_the_project_has_its_addresses_on_pypi() -> None:
    """Before each build the workflow appends the addresses of the source, the pages, the changes and the issues."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "pypi-urls"), "https://example.org/sow/", "v1"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    urls = tomllib.loads(project + section)["project"]["urls"]
    assert urls["Source"] == "https://example.org/sow"
    assert urls["Changelog"] == "https://example.org/sow/blob/v1/CHANGELOG.md"
    assert {*urls} == {"Source", "Documentation", "Changelog", "Issues"}
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert workflow.count("pypi-urls") == workflow.count(".ci/pypi-readme") == 2


def test_wheels_are_built_for_every_supported_python_and_system() -> None:
    """The workflow has Linux on both processors, macOS and Windows; cibuildwheel has the Pythons of the classifiers."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    systems = workflow["jobs"]["wheels"]["strategy"]["matrix"]["os"]
    assert [name.split("-")[0] for name in systems] == ["ubuntu", "ubuntu", "macos", "windows"]
    assert any("arm" in name for name in systems)
    assert workflow["jobs"]["publish"]["needs"] == ["wheels", "sdist"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    supported = re.findall(r"Python :: (3)\.(\d+)", "\n".join(project["project"]["classifiers"]))
    built = project["tool"]["cibuildwheel"]["build"].split()
    assert {f"cp{major}{minor}-*" for major, minor in supported} <= set(built)


def test_the_package_sowstream_has_the_same_objects() -> None:
    """`from sowstream import Client` is the same class: no module exists twice."""
    assert sowstream.Client is Client
    assert sowstream.Config is Config
    assert sowstream.api is api
    assert all(getattr(sowstream, name) is not None for name in [*sowstream.__all__, "__version__"])


def test_importing_sowstream_imports_nothing_else() -> None:
    """The names are imported at their first use."""
    program = "import sys, sowstream; sys.exit('processor.client' in sys.modules or 'confluent_kafka' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_every_package_ships_its_types() -> None:
    """Each package that is installed has py.typed."""
    facade = ("processor/facade/pyspark_sowstream", "processor/facade/sowstream")
    for package in ("processor", "spark_integration", *facade):
        assert (ROOT / package / "py.typed").is_file()


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
