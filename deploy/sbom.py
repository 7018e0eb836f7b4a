"""Prints the bill of materials of the image it runs in, as CycloneDX 1.5: Python's packages and the system's.

The packages are those of the interpreter that runs it, and of dpkg where there is one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from typing import Any

_SYSTEM = "/etc/os-release"


def component(distribution: Distribution) -> dict[str, Any]:
    """A package of Python, with its licence as the package itself names it."""
    metadata = distribution.metadata
    name = metadata["Name"].lower().replace("_", "-").replace(".", "-")
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{distribution.version}",
        "name": metadata["Name"],
        "version": distribution.version,
        "purl": f"pkg:pypi/{name}@{distribution.version}",
    }
    if expression := metadata.get("License-Expression"):
        found["licenses"] = [{"expression": expression}]
    elif licences := _licences(distribution):
        found["licenses"] = [{"license": {"name": licence}} for licence in licences]
    return found


def system_components() -> list[dict[str, Any]]:
    """The packages of dpkg; none without it."""
    if (program := shutil.which("dpkg-query")) is None:
        return []
    form = "${Package}\t${Version}\t${Architecture}\n"
    listed = subprocess.run([program, "--show", "--showformat", form], capture_output=True, text=True, check=True)
    system = _system_name()
    rows = (line.split("\t") for line in listed.stdout.splitlines())
    return [
        {
            "type": "library",
            "bom-ref": (purl := f"pkg:deb/{system}/{name}@{number}?arch={architecture}"),
            "name": name,
            "version": number,
            "purl": purl,
        }
        for name, number, architecture in rows
    ]


def bill() -> dict[str, Any]:
    """The whole document."""
    packages = {found["purl"]: found for found in map(component, distributions())}
    own = packages.pop(f"pkg:pypi/sowstream@{version('sowstream')}")
    python = {"type": "platform", "name": "python", "version": sys.version.split()[0]}
    parts = [packages[purl] for purl in sorted(packages)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own | {"type": "application"}},
        "components": [python, *parts, *system_components()],
    }


def _licences(distribution: Distribution) -> list[str]:
    """The licences of the classifiers, or the first line of the older field."""
    classifiers = distribution.metadata.get_all("Classifier") or []
    named = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    text = (distribution.metadata.get("License") or "").strip()
    return named or ([text.splitlines()[0]] if text else [])


def _system_name() -> str:
    """The system's name in package URLs, such as `debian`."""
    file = Path(_SYSTEM)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith("ID=")), "linux")


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
