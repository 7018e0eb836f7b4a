"""The image: its instructions, its packages, and its list of them."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def instructions(file: str = "Dockerfile") -> list[tuple[str, str]]:
    """The instructions of a Dockerfile in order, continued lines joined, comments dropped."""
    text = (ROOT / "deploy" / file).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined.splitlines() if line]


def arguments(name: str, file: str = "Dockerfile") -> list[str]:
    """The arguments of every instruction with a name."""
    return [argument for instruction, argument in instructions(file) if instruction == name]


def locked(file: str) -> dict[str, str]:
    """The version of each package in a lock file."""
    text = (ROOT / ".locks" / file).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, flags=re.MULTILINE))


def test_base_image_is_an_argument_with_a_fixed_tag() -> None:
    """Every stage starts from BASE_IMAGE, so one argument changes the base of the image."""
    assert arguments("ARG")[0] == "BASE_IMAGE=python:3.11-slim"
    assert [stage.split()[0] for stage in arguments("FROM")] == ["${BASE_IMAGE}", "${BASE_IMAGE}"]


def test_process_is_not_root_and_gets_the_signals() -> None:
    """The process runs as a user other than root, and its entry point is a program and not a shell."""
    assert arguments("USER") == ["10001:10001"]
    assert arguments("ENTRYPOINT") == ['["sowstream"]']


def test_the_image_has_no_health_check() -> None:
    """The image has no health check of its own, since its user knows which process runs and where it answers."""
    assert arguments("HEALTHCHECK") == []


def test_jemalloc_is_installed_and_loaded() -> None:
    """The library in LD_PRELOAD is the one that the package installs; a wrong name would only be a line on stderr."""
    installed = re.findall(r"apt-get install (?:--\S+ )*([^&]*?) &&", " ".join(arguments("RUN")))
    assert installed == ["$missing", "libjemalloc2"]
    assert "LD_PRELOAD=libjemalloc.so.2" in arguments("ENV")


def test_a_failed_installation_ends_the_build_unless_it_is_allowed() -> None:
    """An image without the compiled merge or jemalloc is built on request only; no package list stays in a layer."""
    runs = [argument for argument in arguments("RUN") if "apt-get install" in argument or "fast_path_json" in argument]
    assert len(runs) == 3
    for run in runs:
        assert '|| [ "$SLOW" = 1 ]' in run
        assert ("apt-get install" in run) == ("apt-get clean && rm -rf /var/lib/apt/lists/*" in run)
    assert arguments("ARG")[1:] == ["SLOW=0", "SLOW=0"]


def test_nothing_unlocked_is_installed() -> None:
    """Each `pip install` checks hashes, or takes the wheel just built and nothing else."""
    installs = re.findall(r"pip(?: --python \S+)? install [^&]*", " ".join(arguments("RUN")))
    assert len(installs) == 3
    for install in installs:
        assert "--require-hashes -r " in install or ("--no-deps" in install and "--no-index" in install), install


def test_build_context_is_an_allow_list_with_all_that_is_copied() -> None:
    """The build context contains exactly the files that the two Dockerfiles copy."""
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    allowed = {line.removeprefix("!") for line in rules if line.startswith("!")}
    copied = {
        source
        for file in ("Dockerfile", "Dockerfile.spark")
        for argument in arguments("COPY", file)
        if not argument.startswith("--from")
        for source in argument.split()[:-1]
    }
    assert rules[0] == "*"
    # A file below a directory that is allowed.
    assert {source for source in copied if not source.startswith("deploy/spark/")} == allowed


def package_folders() -> set[Path]:
    """The folders of the packages that a wheel is made of, from the project's folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    find = project["tool"]["setuptools"]["packages"]["find"]
    places = [Path(where) / name.rstrip("*") for where in find["where"] for name in find["include"]]
    folders = {folder for folder in places if (ROOT / folder).is_dir()}
    assert {folder.name for folder in folders} == {name.rstrip("*") for name in find["include"]}
    return folders


@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.spark"])
def test_every_package_of_the_project_is_copied(file: str) -> None:
    """The wheel in an image is made of all packages that the project has, such as the one by which Spark finds it."""
    copied = {source for argument in arguments("COPY", file) for source in argument.split()[:-1]}
    assert {folder.parts[0] for folder in package_folders()} <= copied


def test_image_lock_is_the_projects_without_the_embedded_broker() -> None:
    """The image has the tested versions of the project's packages, and nothing that only the embedded broker needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    image, runtime = locked("image.txt"), locked("runtime.txt")
    needed = {re.split(r"[\[<>=!~]", requirement)[0] for requirement in project["dependencies"]}
    extra = project["optional-dependencies"]["embedded"]
    embedded = {re.split(r"[<>=]", requirement)[0] for requirement in extra}
    of_kafka = requires("confluent-kafka") or []
    registry = {re.split(r"[<>=]", one)[0] for one in of_kafka if one.endswith('extra == "schemaregistry"')}
    assert needed <= set(image)
    assert embedded - registry
    assert not (embedded - registry) & set(image)
    assert image.items() <= runtime.items()


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
