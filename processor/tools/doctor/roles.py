"""Checks the rights of one role: each topic and group that it needs, with the operations that Kafka permits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from processor.errors import Stop
from processor.hosting.acls import Grant, Who, grants
from processor.hosting.configured_pipelines import pipelines
from processor.hosting.pipeline import family_of
from processor.kafka.admin.rights import AclRights, RightsInspector
from processor.tools.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.config import Config

Role: TypeAlias = Literal[
    "deployer", "worker", "conflater", "viewer", "gateway", "publisher", "subscriber", "consumer", "dlq", "settler"
]
"""A role of `sowstream topics apply --acls`."""

ROLES: Final[tuple[str, ...]] = get_args(Role)
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
