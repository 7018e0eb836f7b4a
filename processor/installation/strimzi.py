"""The topics and rights of an installation as objects of Strimzi's operators: `sowstream topics apply --strimzi`.

A KafkaTopic for each topic, and a KafkaUser for each role, with the rights of `acls`. Kubernetes keeps them, and the
operators bring Kafka in line: who may write them needs no right in Kafka. The fields are those of Strimzi's API `v1`,
which are the same in `v1beta2`.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from processor.topics.family import copies, durable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.installation.acls import Grant
    from processor.topics.family import TopicSpec

API: Final = "kafka.strimzi.io/v1"
BROKERS: Final = 3
"""The brokers that the cluster is expected to have, as none is asked: topics get three copies."""
_KINDS: Final = {"transactional-id": "transactionalId"}
"""Strimzi's word for a kind of resource, where it is not Kafka's."""
_NAME_MAX: Final = 253
"""The characters of a name in Kubernetes."""


def topic_objects(specs: Iterable[TopicSpec], cluster: str) -> list[dict[str, Any]]:
    """A KafkaTopic for each topic.

    Args:
        specs: the topics as they should be.
        cluster: the name of the Kafka object, in the namespace of these.
    """
    return [
        {
            "apiVersion": API,
            "kind": "KafkaTopic",
            "metadata": {"name": object_name(spec.name), "labels": {"strimzi.io/cluster": cluster}},
            "spec": {
                "topicName": spec.name,
                "partitions": spec.partitions,
                "replicas": copies(BROKERS),
                "config": dict(spec.config),
            },
        }
        for spec in durable({spec.name: spec for spec in specs}.values(), BROKERS)
    ]


def user_objects(grants: Iterable[Grant], cluster: str, application_id: str) -> list[dict[str, Any]]:
    """A KafkaUser for each role, whose password the operator makes and keeps in a Secret of its name.

    Args:
        grants: the rights of all roles.
        cluster: as `topic_objects`.
        application_id: the first part of the users' names.
    """
    of_role: dict[str, dict[tuple[str, str, bool], list[str]]] = {}
    for grant in grants:
        operations = of_role.setdefault(grant.who, {}).setdefault((grant.kind, grant.name, grant.is_prefix), [])
        operations += [each for each in grant.operations if each not in operations]
    return [
        {
            "apiVersion": API,
            "kind": "KafkaUser",
            "metadata": {
                "name": object_name(f"{application_id}-{role.lower()}"),
                "labels": {"strimzi.io/cluster": cluster},
            },
            "spec": {
                "authentication": {"type": "scram-sha-512"},
                "authorization": {
                    "type": "simple",
                    "acls": [
                        {"resource": _resource(*resource), "operations": sorted(operations)}
                        for resource, operations in sorted(rights.items())
                    ],
                },
            },
        }
        for role, rights in sorted(of_role.items())
    ]


def object_name(name: str) -> str:
    """A name in Kubernetes: as it is if it may be one, else in small letters, with a checksum that tells it apart."""
    labels = (re.sub(r"[^a-z0-9-]+", "-", label).strip("-") for label in name.lower().split("."))
    plain = ".".join(filter(None, labels))
    if plain == name and len(name) <= _NAME_MAX:
        return name
    checksum = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain[: _NAME_MAX - 9].rstrip('-.')}-{checksum}".lstrip("-")


def _resource(kind: str, name: str, is_prefix: bool) -> dict[str, str]:
    if kind == "cluster":
        return {"type": "cluster"}
    return {"type": _KINDS.get(kind, kind), "name": name, "patternType": "prefix" if is_prefix else "literal"}
