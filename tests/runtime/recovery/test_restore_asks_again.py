"""Tests of a restore that asks a broker which has just started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.codec import load_codec
from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.hosting.pipeline import Pipeline
from processor.kafka import errors as kafka_errors
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.task import Task
from tests.runtime.test_task import Script, Scripted


def restorer(code: int) -> Restorer:
    """Create a restorer whose first question, the id of the SOW topic, is answered with an error."""

    def open_state(_: int) -> NoReturn:
        error = KafkaException(KafkaError(code))
        raise kafka_errors.stop(error, "looking at the topic orders.sow") from error

    created = Restorer(
        reader=cast("Any", SimpleNamespace(group="g")),  # Nobody else is asked before.
        admin=cast("Any", None),
        source="orders.publish",
        sow="orders.sow",
        mark=None,
        open_state=open_state,
        stall_timeout_s=60.0,
    )
    pipeline = Pipeline.of(Scripted, Script(), name="orders", topic=TopicConfig())
    created.add(Task(pipeline, 0, load_codec("json")))
    return created


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._TRANSPORT])
def test_a_broker_that_does_not_know_its_topics_yet_is_asked_again(code):
    """The topics existed at the start of the worker, so the question is repeated until it is answered."""
    waiting = restorer(code)
    assert waiting.advance(0.0) == []
    assert waiting.is_busy


def test_a_broker_that_refuses_ends_the_worker():
    """A refused question is not repeated."""
    with pytest.raises(ConfigurationError, match="ACLs"):
        restorer(KafkaError.TOPIC_AUTHORIZATION_FAILED).advance(0.0)
