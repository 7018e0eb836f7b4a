"""The bill of materials names every locked package of the image, with its version and a licence."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from tests.deploy.test_image import ROOT, arguments, locked

SPEC = importlib.util.spec_from_file_location("sbom", ROOT / "deploy" / "sbom.py")


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    """The bill of the environment that the tests run in."""
    assert SPEC is not None
    assert SPEC.loader is not None
    module = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(module)
    return dict(module.bill())


def test_locked_packages_are_components(bill: dict[str, Any]) -> None:
    """Each package of the image's lock that is installed here is a component with the installed version."""
    purls = {each.get("purl") for each in bill["components"]}
    expected = set()
    for name in locked("image.txt"):
        try:
            expected.add(f"pkg:pypi/{name}@{version(name)}")
        except PackageNotFoundError:  # Of another platform, or of an extra that is not here.
            continue
    assert len(expected) > 20
    assert expected <= purls


def test_python_packages_name_a_licence(bill: dict[str, Any]) -> None:
    """A locked package without a licence in its own metadata would be a question to each user's lawyers."""
    names = set(locked("image.txt"))
    ours = [each for each in bill["components"] if re.sub(r"[_.]", "-", each["name"].lower()) in names]
    assert [each["name"] for each in ours if "licenses" not in each and each["purl"].startswith("pkg:pypi/")] == []


def test_references_are_unique(bill: dict[str, Any]) -> None:
    """CycloneDX requires each `bom-ref` once."""
    references = [each["bom-ref"] for each in bill["components"] if "bom-ref" in each]
    assert len(references) == len(set(references))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")


def test_the_image_makes_its_bill() -> None:
    """The last stage runs the program with the image's own interpreter, after all packages are there."""
    [run] = [argument for argument in arguments("RUN") if "sbom.py" in argument]
    assert run.startswith("/opt/sowstream/bin/python3 ")
