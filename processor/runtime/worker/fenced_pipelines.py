"""Decides what a pipeline does under the fences of the control topic: it merges, forwards, or waits.

=============================  =====================================================================================
a topic                        its pipeline
=============================  =====================================================================================
without a fence                merges
whose fence is up              waits: Spark merges it, or its records are being copied
that has moved                 forwards its input to the topic that has taken its place
that takes another's place     waits until the records of that one have been copied, then merges
=============================  =====================================================================================

A fence is in the marks of the topic as well, which a worker restores before it merges: where the control topic could
not be read, its partitions are held, and a topic that has moved begins again as one that forwards.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError, TopicFenced
from processor.hosting.pipeline import Outlet, Pipeline
from processor.hosting.plugins import installed, plugin_of
from processor.wire.ack import MOVED_ACKS
from processor.wire.control import MOVED, Fence, decode

if TYPE_CHECKING:
    from processor.config import Config
    from processor.installation.control_thread import ControlThread


_FORWARD: Final = "forward"
"""The plug-in that forwards the input of a moved topic."""


class FencedPipelines:
    """The pipelines of one process, as the fences of their topics let them run."""

    def __init__(self, config: Config, control: ControlThread) -> None:
        """Create it.

        Args:
            config: the settings.
            control: reads the fences.
        """
        self._config = config
        self._control = control

    def of(self, pipeline: Pipeline) -> Pipeline:
        """Return a pipeline as it is to run now. Never waits.

        Raises:
            TopicFenced: it must wait.
            ConfigurationError: the settings lack the topic that has taken its place.
        """
        former = pipeline.topic.moved_from if pipeline.name in self._config.topics else None
        if former is not None:
            pipeline = self._after_copy(pipeline, former)
        fence = self._control.fence_of(pipeline.name)
        if fence is not None and fence.phase == MOVED:
            return self._forwarding(pipeline, fence)
        if (error := self._control.fence(pipeline.name)) is not None:
            raise error
        return pipeline

    def refusal(self, pipeline: Pipeline, mark: bytes) -> str | None:
        """Return why a pipeline must not run as it does, by the fence in the marks of a partition; None: it may.

        What the control topic says has made the pipeline what it is; but that may be missing, or silent for too long.
        """
        fence = decode(Fence, mark)
        if fence is None:
            return "its marks have the fence of a newer version, under which no worker of this one may merge it"
        is_forwarding = pipeline.processor_type is plugin_of(installed(), _FORWARD, pipeline.name)
        if not fence.is_up or (is_forwarding and fence.phase == MOVED):
            return None
        if fence.phase == MOVED and not fence.waiting:
            self._control.learn_fence(pipeline.name, fence)  # All that forwarding needs: the pipeline begins again.
        return f"by its marks {fence.sentence(pipeline.name)}"

    def _after_copy(self, pipeline: Pipeline, former: str) -> Pipeline:
        """The pipeline of a topic that has the records of another one; it answers in each partition of that one."""
        fence = self._control.fence_of(former)
        if fence is None or (fence.phase, fence.moved_to) != (MOVED, pipeline.name):
            raise TopicFenced(
                f"{pipeline.name} waits for the records of {former}, whose place it takes: `sowstream reshard "
                f"{former}` copies them"
            )
        outlet = pipeline.outlets[MOVED_ACKS]
        if len(fence.offsets) <= outlet.partitions:
            return pipeline
        grown = outlet._replace(partitions=len(fence.offsets))
        return pipeline._replace(outlets=MappingProxyType({**pipeline.outlets, MOVED_ACKS: grown}))

    def _forwarding(self, pipeline: Pipeline, fence: Fence) -> Pipeline:
        name = fence.moved_to
        if name not in self._config.topics:
            raise ConfigurationError(
                f"{pipeline.name} has moved to {name}, which the settings do not have: its input cannot be forwarded. "
                f"Add the section topics.{name} with `moved_from: {pipeline.name}`"
            )
        kafka_topic = self._config.kafka_names.topic(name, "publish")
        plugin = plugin_of(installed(), _FORWARD, pipeline.name)
        settings = {"moved_to": name, "kafka_topic": kafka_topic, "waiting": fence.waiting}
        outlet = Outlet(kafka_topic, self._config.topics[name].partitions)
        return Pipeline.of(
            plugin,
            plugin.settings_type.model_validate(settings),
            name=pipeline.name,
            topic=pipeline.topic.model_copy(update={"partitions": len(fence.offsets)}),
            names=pipeline.names,
            outlets={output.role: outlet for output in plugin.outputs if output.downstream},
            successor=name,
        )
