"""The release: links of the PyPI page, the workflow, and the package `sowstream`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

import sowstream
from processor import api
from processor.client import Client
from processor.config import Config

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
