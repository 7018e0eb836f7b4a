"""The rights of each role on a secured cluster, which `sowstream topics apply` prints or grants in place of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from processor.cli.output import data, inform, table
from processor.errors import ConfigurationError, counted, unknown_name
from processor.installation.acls import Who, commands, grants, rights_of, topic_objects, user_objects
from processor.installation.configured_pipelines import pipelines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.config import Config
    from processor.topics.family import TopicSpec


def print_commands(config: Config) -> None:
    """Print the ACL commands, without a request to Kafka."""
    for command in commands(grants(config, pipelines(config, [])), config.kafka.get("bootstrap.servers", "HOST:9092")):
        data(command)
    inform(
        "Set DEPLOYER (who runs `topics apply`), WORKER, CONFLATER, VIEWER, GATEWAY, PUBLISHER, SUBSCRIBER, CONSUMER, "
        "DLQ and SETTLER to the names of the principals, and pipe this into a shell; an admin's credentials go with "
        "--command-config. `topics apply --grant worker=USER …` does the same at once."
    )


def print_objects(config: Config, specs: Iterable[TopicSpec], cluster: str) -> None:
    """Print the objects of Strimzi's operators, without a request to Kafka."""
    import yaml  # noqa: PLC0415

    topics = topic_objects(specs, cluster)
    users = user_objects(grants(config, pipelines(config, [])), cluster, config.group_prefix)
    data(yaml.safe_dump_all([*topics, *users], sort_keys=False).rstrip())
    inform(
        f"{len(topics)} KafkaTopics and {len(users)} KafkaUsers; the operator puts the password of each user into a "
        "Secret of its name. Then run `topics apply`."
    )


def grant_rights(config: Config, pairs: Iterable[str]) -> None:
    """Grant the rights of roles to users, and print those that were missing.

    Args:
        config: the settings.
        pairs: texts such as `worker=alice`.

    Raises:
        ConfigurationError: a text is no such pair, or this user may not grant rights.
        Stop: Kafka refuses, or does not answer.
    """
    from processor.kafka.admin.admin import Admin  # noqa: PLC0415

    roles: dict[str, Who] = {who.lower(): who for who in get_args(Who)}
    users: dict[Who, list[str]] = {}
    for pair in pairs:
        role, _, user = pair.partition("=")
        if role.lower() not in roles:
            raise ConfigurationError(f"--grant {pair}: {unknown_name('role', role, [*roles])}")
        if not user:
            raise ConfigurationError(f"--grant {pair}: it names no user; write {role}=USER")
        users.setdefault(roles[role.lower()], []).append(user)
    needed = list(grants(config, pipelines(config, [])))
    wanted = rights_of(needed, users)
    granted = Admin(config.kafka, config.connect_timeout_s).grant(wanted)
    of_resource: dict[tuple[str, str, str], list[str]] = {}
    for right in granted:
        name = f"{right.name}{'*' if right.is_prefix else ''}"
        of_resource.setdefault((right.principal, right.kind, name), []).append(right.operation)
    table(
        ("user", "resource", "name", "rights"),
        [(*resource, ", ".join(operations)) for resource, operations in of_resource.items()],
    )
    present = len({*wanted}) - len(granted)
    inform(f"{counted(len(granted), 'right')} granted; {present:,} {'was' if present == 1 else 'were'} there already.")
    if idle := {grant.who for grant in needed}.difference(users):
        inform(f"No user was named for {', '.join(role for role, who in roles.items() if who in idle)}.")
