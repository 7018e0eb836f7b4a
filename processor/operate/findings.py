"""The doctor's findings about the way to Kafka, the registered schemas, and the rights of a role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from processor.codec import codec_of
from processor.errors import ConfigurationError, Stop
from processor.hosting.pipeline import family_of
from processor.installation.acls import Grant, Who, grants
from processor.installation.configured_pipelines import pipelines
from processor.installation.settings_check import registry_subject_of
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.connection import Cluster
from processor.kafka.admin.rights import AclRights, RightsInspector
from processor.kafka.connection_faults import parts_of
from processor.kafka.connection_probe import addresses_of, steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.config import Config


class Finding(NamedTuple):
    """One line of the doctor's report."""

    level: Literal["ok", "warn", "fail"]
    """`fail`: something will not work; `warn`: something may not, or not for long."""
    subject: str
    """The subject of the check."""
    found: str
    """The state found."""
    to_do: str = ""
    """The remedy; empty if there is nothing to do."""


_ADVERTISED_MAX = 9
"""Brokers whose advertised addresses are looked at."""


def check_connection(config: Config, timeout_s: float) -> tuple[list[Finding], Admin | None, Cluster | None]:
    """Connect to Kafka step by step.

    Returns:
        The findings, and the administration client with the cluster; None and None where a step failed.
    """
    kafka = config.kafka
    try:
        admin = Admin(kafka)
    except Stop as error:
        return [Finding("fail", "kafka", str(error), "correct the section kafka of the settings")], None, None
    by_address = [_of_address(address, kafka) for address in addresses_of(kafka)]
    findings = [finding for of_address in by_address for finding in of_address]
    reached = [of_address for of_address in by_address if of_address[-1].level == "ok"]
    if not reached:
        return findings, None, None
    # One address of several suffices.
    findings = [finding._replace(level="warn") if finding.level == "fail" else finding for finding in findings]
    try:
        cluster = admin.cluster(timeout_s)
    except Stop as error:
        reason, to_do = parts_of(error)
        return [*findings, Finding("fail", "login and first request", reason, to_do)], None, None
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    login = f", login by {kafka.get('sasl.mechanism', 'GSSAPI')}" if "SASL" in protocol else ""
    findings.append(Finding("ok", "broker", f"{', '.join(cluster.brokers)} ({protocol}{login})"))
    return [*findings, *_advertised(cluster, kafka)], admin, cluster


def _of_address(address: str, kafka: dict[str, str]) -> list[Finding]:
    findings = []
    for step in steps(address, kafka):
        if step.fault is not None:
            findings.append(Finding("fail", f"{step.name} {address}", step.fault.found, step.fault.to_do))
        else:
            findings.append(Finding("ok", f"{step.name} {address}", step.found))
    return findings


def _advertised(cluster: Cluster, kafka: dict[str, str]) -> list[Finding]:
    """Look at the addresses that clients use after the first request."""
    others = [address for address in cluster.brokers if address not in addresses_of(kafka)]
    findings = []
    for address in others[:_ADVERTISED_MAX]:
        last = steps(address, kafka)[-1]
        if last.fault is not None:
            findings.append(
                Finding(
                    "fail",
                    f"advertised {address}",
                    f"the brokers send clients to this address, and it cannot be used: {last.fault.found}",
                    "correct advertised.listeners of the brokers, or make the address known here",
                )
            )
    return findings


def check_schemas(config: Config) -> list[Finding]:
    """Fetch and compile the schemas that a registry has; one that does not answer is asked once."""
    findings = []
    for name in config.topics:
        subject = registry_subject_of(config, name)
        if subject is None:
            continue
        try:
            codec_of(config, name)
        except Stop as error:
            to_do = "correct schema_registry or the schema of the topic, or register the subject"
            findings.append(Finding("fail", f"schema of {name}", str(error), to_do))
            if not isinstance(error, ConfigurationError):
                break  # Each further topic would wait as long.
        else:
            findings.append(Finding("ok", f"schema of {name}", f"subject {subject}"))
    return findings


Role: TypeAlias = Literal[
    "deployer", "worker", "conflater", "viewer", "gateway", "publisher", "subscriber", "consumer", "dlq", "settler"
]
"""A role of `sowstream topics apply --acls`."""

_TO_DO: Final = "grant it: sowstream topics apply --acls prints the rights of each role"


def check_role(config: Config, role: Role, timeout_s: float) -> list[Finding]:
    """Check that this user has the rights of a role, and that the topics of the role exist; nothing else is asked."""
    who: Who = role.upper()  # type: ignore[assignment]
    chosen = pipelines(config, [])
    wanted = [grant for grant in grants(config, chosen) if grant.who == who]
    if not wanted:
        return [Finding("warn", f"role {role}", "the settings have no topic for it", "name another role: --role")]
    kafka_topics = {pipeline.output(one) for pipeline in chosen for one in pipeline.roles}
    topics = _by_resource(wanted, "topic", kafka_topics)
    groups = _by_resource(wanted, "group", ())
    inspector = RightsInspector(config.kafka, timeout_s)
    own = {config.kafka_names.directory, config.kafka_names.control}
    optional = own | {spec.name for pipeline in chosen for spec in family_of(pipeline) if spec.is_optional}
    try:
        findings = _topics(topics, inspector.topics(topics), optional)
        findings += _groups(groups, inspector.groups(groups))
    except Stop as error:
        return [Finding("fail", f"role {role}", str(error))]
    ids = sum(grant.kind == "transactional-id" for grant in wanted)
    if not any(finding.level == "fail" for finding in findings):
        unasked = "; Kafka does not report rights to transactional ids" if ids else ""
        findings.append(
            Finding("ok", f"role {role}", f"rights to {len(topics)} topics and {len(groups)} groups{unasked}")
        )
    return findings


def _by_resource(wanted: Iterable[Grant], kind: str, names: Iterable[str]) -> dict[str, set[str]]:
    """The operations that are needed, by topic or group; a grant by prefix counts for each name that begins with it."""
    needed: dict[str, set[str]] = {}
    for grant in wanted:
        if grant.kind != kind:
            continue
        matching = [name for name in names if name.startswith(grant.name)] if grant.is_prefix else [grant.name]
        for name in matching or [f"{grant.name}doctor"]:
            needed.setdefault(name, {"Describe"}).update(grant.operations)
    return needed


def _topics(needed: Mapping[str, set[str]], rights: Mapping[str, AclRights], optional: set[str]) -> list[Finding]:
    findings = []
    for name, operations in needed.items():
        missing = sorted(rights[name].missing(operations))
        if not rights[name].exists:
            level: Literal["warn", "fail"] = "warn" if name in optional else "fail"
            findings.append(Finding(level, name, "does not exist", "sowstream topics apply, by its administrator"))
        elif missing:
            findings.append(Finding("fail", name, f"this user lacks {', '.join(missing)}", _TO_DO))
    return findings


def _groups(needed: Mapping[str, set[str]], rights: Mapping[str, AclRights]) -> list[Finding]:
    return [
        Finding("fail", f"group {name}", f"this user lacks {', '.join(missing)}", _TO_DO)
        for name, operations in needed.items()
        if (missing := sorted(rights[name].missing(operations)))
    ]
