"""Checks the broker and the topics on it."""

from __future__ import annotations

import time
from typing import Literal

from processor.config import Config
from processor.errors import ConfigurationError, Stop
from processor.hosting.pipeline import pipelines, specs
from processor.hosting.topic_check import problems_of
from processor.kafka.admin.admin import Admin, Cluster
from processor.runtime.watching.rivals import ask_members, rivals
from processor.shared_topics.directory import report
from processor.tools.doctor.finding import Finding
from processor.tools.doctor.transactions import check_transactions
from processor.tools.healing import look, topics_to_look_at
from processor.topics import Problem, internal_problems
from processor.topics.replication import INTERNAL

_PATIENCE_S = 5.0
_KEYS_S = 10.0
"""Time after which no further topic's keys are looked at."""


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
