"""The doctor fetches the schemas that a registry has."""

from __future__ import annotations

import json

from confluent_kafka.schema_registry import Schema

from processor.codec.schema_registry.http_client import new_client
from processor.config import Config
from processor.tools.doctor.registered_schemas import check_schemas

URL = "mock://doctor"


def test_a_missing_subject_is_found_and_a_registered_one_is_well() -> None:
    """Each topic has a finding; one whose schema is in a file has none."""
    topic = {"message_type": "avro", "schema": {"subject": "orders.publish-value"}}
    config = Config.model_validate({"schema_registry": {"url": URL}, "topics": {"orders": topic, "plain": {}}})
    [finding] = check_schemas(config)
    assert (finding.level, finding.subject) == ("fail", "schema of orders")
    assert "has no subject orders.publish-value" in finding.found
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    new_client({"url": URL}, URL).register_schema("orders.publish-value", Schema(json.dumps(order), "AVRO"))
    assert [(one.level, one.found) for one in check_schemas(config)] == [("ok", "subject orders.publish-value")]
