"""Topics and rights as objects of Strimzi's operators: the same as `topics apply` and `--acls`, in valid form."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from processor.config import Config
from processor.installation.acls import Grant, grants, object_name, topic_objects, user_objects
from processor.installation.configured_pipelines import pipelines, specs

CRDS = Path(os.environ.get("SOWSTREAM_TEST_CRDS") or Path(__file__).parents[3] / "shared" / "suites" / "crds")
"""Schemas of custom resources, as datreeio/CRDs-catalog has them."""
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A name in Kubernetes (RFC 1123)."""
CONFIG = Config.model_validate({
    "application_id": "Desk_1",
    "topic_prefix": "acme.",
    "topics": {"orders": {"key": ["/id"], "partitions": 12, "kafka_topics": {"publish": "Legacy_IN"}}},
    "conflated": {"orders_5s": {"underlying": "orders", "interval": "5s"}},
    "views": {"open": {"underlying": "orders", "group_by": ["/customer"], "fields": {"/n": "COUNT(*)"}}},
    "queues": {"to_ship": {"underlying": "orders"}},
})  # fmt: skip


def all_grants() -> list[Grant]:
    """The rights that `--acls` prints."""
    return list(grants(CONFIG, pipelines(CONFIG, [])))


def users() -> list[dict[str, Any]]:
    """The users of the settings."""
    return user_objects(all_grants(), "main", CONFIG.group_prefix)


def test_each_topic_has_an_object_with_its_settings() -> None:
    """Name, partitions and settings are those of `topics apply` on three brokers."""
    wanted = {spec.name: spec for spec in specs(CONFIG)}
    objects = topic_objects([*specs(CONFIG), *specs(CONFIG)], "main")
    assert [one["spec"]["topicName"] for one in objects] == list(wanted)
    for one in objects:
        spec = wanted[one["spec"]["topicName"]]
        assert one["spec"]["partitions"] == spec.partitions
        assert one["spec"]["replicas"] == 3
        assert one["spec"]["config"] == {"min.insync.replicas": "2", **spec.config}
        assert one["metadata"]["labels"] == {"strimzi.io/cluster": "main"}
        assert DNS_NAME.fullmatch(one["metadata"]["name"])


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_topics_have_the_form_that_the_operator_knows(version: str) -> None:
    """The schema of KafkaTopic accepts each object, and refuses another one."""
    if not (file := CRDS / "kafka.strimzi.io" / f"kafkatopic_{version}.json").exists():
        pytest.skip(f"{file} is not there: SOWSTREAM_TEST_CRDS names the directory")
    schema = Draft7Validator(json.loads(file.read_text(encoding="utf-8")))
    objects = topic_objects(specs(CONFIG), "main")
    assert [error.message for one in objects for error in schema.iter_errors(one)] == []
    assert list(schema.iter_errors({**objects[0], "spec": {"partitions": 0}}))


def test_users_have_the_rights_of_the_acls_and_no_others() -> None:
    """Each role is a user, with each operation on each resource that `--acls` grants it."""
    words = {"transactionalId": "transactional-id"}
    given_rights = {
        (
            one["metadata"]["name"].removeprefix("acme.desk-1-").rpartition("-")[0],
            words.get(acl["resource"]["type"], acl["resource"]["type"]),
            acl["resource"].get("name", ""),
            acl["resource"].get("patternType") == "prefix",
            operation,
        )
        for one in users()
        for acl in one["spec"]["authorization"]["acls"]
        for operation in acl["operations"]
    }
    assert given_rights == {
        (grant.who.lower(), grant.kind, grant.name, grant.is_prefix, operation)
        for grant in all_grants()
        for operation in grant.operations
    }
    assert len(users()) == 10
    assert all(DNS_NAME.fullmatch(one["metadata"]["name"]) for one in users())


def test_users_of_two_installations_stay_apart() -> None:
    """Two prefixes, as two `application_id`s, have users of their own: one's `kubectl apply` leaves the other's."""
    names = [
        {
            one["metadata"]["name"]
            for one in user_objects(grants(config, pipelines(config, [])), "main", config.group_prefix)
        }
        for config in (
            Config(topics={"orders": {}}, topic_prefix=prefix) for prefix in ("", "acme.desk.", "acme.risk.")
        )
    ]
    assert "sowstream-worker" in names[0]
    assert "acme.desk.sowstream-worker" in names[1]
    assert len(set().union(*names)) == sum(map(len, names))


@given(st.text(st.sampled_from("aZ0._-"), min_size=1, max_size=249))
def test_a_name_of_kafka_becomes_one_of_kubernetes(name: str) -> None:
    """A valid name stays; any other one becomes valid, and stays apart from names that look alike."""
    made = object_name(name)
    assert DNS_NAME.fullmatch(made)
    assert len(made) <= 253
    assert (made == name) == bool(DNS_NAME.fullmatch(name))


def test_names_that_look_alike_stay_apart() -> None:
    """Kafka tells capital letters and underscores apart; Kubernetes has neither."""
    names = ["a_b.sow", "a-b.sow", "A-b.sow", "a.b.sow", "a..b.sow", "-a-b.sow"]
    assert len({object_name(name) for name in names}) == len(names)
