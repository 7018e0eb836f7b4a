"""Describes the machine of the figures: processor, memory, and the versions of all software that took part."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import confluent_kafka
import psutil

from processor.runtime.worker import os_process
from processor.trial.broker import jars
from processor.trial.broker.java import find_java
from tests.programs.benchmarks.peers import QUIX
from tests.programs.benchmarks.restore import STREAMS

PACKAGES = ("confluent-kafka", "rocksdict", "orjson", "pyspark", "pandas", "pyarrow")
"""Installed packages whose versions affect the figures."""


def machine() -> dict[str, str | int | float]:
    """The machine and the versions, as stored in the JSON with the figures."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "commit": _commit(),
        "Python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "Kafka": _kafka(),
        "Java": _java(),
        "allocator": os_process.of_programs(),
        "Kafka Streams": STREAMS,
        "Quix Streams": QUIX,
        **{package: _installed(package) for package in PACKAGES},
    }


def load_average() -> float:
    """The load average of the last minute, which shows other activity of the machine."""
    return round(os.getloadavg()[0], 1)


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown"
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.machine()


def _commit() -> str:
    """The measured commit; with a plus if files differ from it."""
    order = ["git", "describe", "--always", "--dirty=+", "--abbrev=9"]
    try:
        run = subprocess.run(order, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return run.stdout.strip()


def _kafka() -> str:
    """The version of the broker in the locked jars; not that of a broker passed with `--bootstrap`."""
    locked = Path(jars.__file__).with_name("jars.lock").read_text(encoding="utf-8")
    match = re.search(r"^org\.apache\.kafka:kafka-clients:(\S+)", locked, re.MULTILINE)
    return match[1] if match else "unknown"


def _java() -> str:
    version_text = subprocess.run(
        [find_java(), "-version"], capture_output=True, text=True, timeout=30, check=False
    ).stderr
    match = re.search(r'version "([^"]+)"', version_text)
    return match[1] if match else "unknown"


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
