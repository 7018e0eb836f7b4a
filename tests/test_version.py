"""Every file that repeats the version of pyproject.toml agrees with it."""

import re
import tomllib
from pathlib import Path

import pytest

import processor

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
COPIES = [
    ("deploy/helm/sowstream/Chart.yaml", r"^version: (\S+)$"),
    ("deploy/helm/sowstream/Chart.yaml", r'^appVersion: "(\S+)"$'),
    ("deploy/helm/sowstream/ci/full-values.yaml", r"^  tag: (\S+)$"),
    ("deploy/Dockerfile", r"-t sowstream:(\S+)"),
    ("deploy/Dockerfile.spark", r"-t sowstream-spark:(\S+)"),
    ("deploy/README.md", r"sowstream(?:-spark)?:(\d\S+)"),
    ("docker-compose.yml", r"sowstream(?:-spark)?:(\d[\d.]*)"),
    ("CITATION.cff", r"^version: (\S+)$"),
]


def test_the_package_has_the_version_of_the_project():
    """`processor.__version__` is the installed package's version, which pyproject.toml declares."""
    assert processor.__version__ == VERSION


@pytest.mark.parametrize(("file", "pattern"), COPIES)
def test_a_file_repeats_the_version_of_the_project(file: str, pattern: str):
    """The chart, the image, the compose file and the citation carry the version of pyproject.toml."""
    versions = set(re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE))
    assert versions == {VERSION}


def test_the_changelog_describes_the_version():
    """The changelog has a section for the version of pyproject.toml."""
    assert f"\n## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
