"""Under which fence a pipeline merges, forwards or waits."""

from __future__ import annotations

from typing import cast

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.builtin.forward import Forward, ForwardSettings
from processor.config import Config
from processor.errors import ConfigurationError, TopicFenced
from processor.hosting.pipeline import Pipeline
from processor.installation.configured_pipelines import pipelines
from processor.installation.control_thread import ControlThread
from processor.runtime.worker.fenced_pipelines import FencedPipelines
from processor.wire.control import Fence

CONFIG = Config.model_validate({"topics": {"orders": {}, "orders_12": {"partitions": 12, "moved_from": "orders"}}})


class _Fences:
    """The fences that were read."""

    def __init__(self, **fences: Fence) -> None:
        self._fences = fences

    def fence_of(self, pipeline: str) -> Fence | None:
        """The fence of a pipeline."""
        return self._fences.get(pipeline)

    def learn_fence(self, pipeline: str, fence: Fence) -> None:
        """Keep a fence that was found in the marks."""
        self._fences[pipeline] = fence

    def fence(self, pipeline: str) -> TopicFenced | None:
        """The refusal of a pipeline whose fence is up."""
        fence = self._fences.get(pipeline)
        return TopicFenced(fence.phase) if fence is not None and fence.is_up else None


def place(name: str, config: Config = CONFIG, **fences: Fence) -> Pipeline:
    """The pipeline of a topic as it is to run."""
    (pipeline,) = pipelines(CONFIG, [name])
    return FencedPipelines(config, cast("ControlThread", _Fences(**fences))).of(pipeline)


def fence(phase: str, **more: object) -> Fence:
    """A fence."""
    return Fence.model_validate({"at_ms": 1, "phase": phase, "number": 0, "moved_to": "orders_12", **more})


def test_before_a_move_the_topic_merges_and_the_other_waits() -> None:
    """Also while the records are copied."""
    assert place("orders").processor_type is DeltaMerge
    with pytest.raises(TopicFenced, match="sowstream reshard orders"):
        place("orders_12")
    for phase in ("workers", "resharding", "spark"):
        with pytest.raises(TopicFenced):
            place("orders_12", orders=fence(phase))
    with pytest.raises(TopicFenced):
        place("orders", orders=fence("resharding"))


def test_after_a_move_the_topic_forwards_and_the_other_merges() -> None:
    """The forwarding pipeline has the partitions of the fence, also those by which the input has grown."""
    moved = fence("moved", offsets=dict.fromkeys(range(6), 0), waiting=[4, 5])
    merging = place("orders_12", orders=moved)
    assert merging.processor_type is DeltaMerge
    assert merging.outlets["moved_acks"] == ("orders.ack", 6)
    forwarding = place("orders", orders=moved)
    assert (forwarding.processor_type, forwarding.topic.partitions) == (Forward, 6)
    assert forwarding.settings == ForwardSettings(
        moved_to="orders_12", kafka_topic="orders_12.publish", waiting=frozenset({4, 5})
    )
    assert forwarding.outlets["moved"] == ("orders_12.publish", 12)
    assert forwarding.source == "orders.publish"
    assert forwarding == place("orders", orders=moved)
    assert forwarding != place("orders", orders=moved.model_copy(update={"waiting": []}))


def test_a_fence_in_the_marks_holds_a_pipeline_that_merges() -> None:
    """A fence that is up or of a newer version holds a partition, although the control topic has not shown it."""
    fences = _Fences()
    fenced = FencedPipelines(CONFIG, cast("ControlThread", fences))
    (merging,) = pipelines(CONFIG, ["orders"])
    for phase in ("resharding", "spark", "to_spark", "backfill", "replacing", "a phase of a newer version"):
        why = fenced.refusal(merging, fence(phase, by="anna@desk").encode())
        assert why is not None
        assert "by its marks" in why
        assert fenced.of(merging) is merging, "only a move that is over makes another pipeline of it"
    assert "newer version" in str(fenced.refusal(merging, b'{"format": 99}'))
    assert fenced.refusal(merging, fence("workers").encode()) is None


def test_a_topic_that_has_moved_forwards_by_its_marks_alone() -> None:
    """The fence in the marks has all that forwarding needs, unless partitions wait for others."""
    for waiting in ([], [4]):
        fences = _Fences()
        fenced = FencedPipelines(CONFIG, cast("ControlThread", fences))
        (merging,) = pipelines(CONFIG, ["orders"])
        moved = fence("moved", offsets=dict.fromkeys(range(6), 0), waiting=waiting)
        assert "orders_12 has taken its place" in str(fenced.refusal(merging, moved.encode()))
        running = fenced.of(merging)
        assert running.processor_type is (DeltaMerge if waiting else Forward)
        if not waiting:
            assert fenced.refusal(running, moved.encode()) is None


def test_a_move_to_a_topic_that_the_settings_lack_is_an_error() -> None:
    """Its input would wait for ever, without a word."""
    with pytest.raises(ConfigurationError, match=r"topics\.orders_12 with `moved_from: orders`"):
        place("orders", Config.model_validate({"topics": {"orders": {}}}), orders=fence("moved", offsets={0: 0}))
