"""A stream thread that makes a span of each batch; a class of its own, so that the loop has no check for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.runtime.stream_thread import StreamThread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Codec
    from processor.config import RuntimeConfig
    from processor.hosting.pipeline import Pipeline
    from processor.record import Record
    from processor.runtime.clients import Clients
    from processor.runtime.task import Task
    from processor.telemetry.tracing import Spans


class TracedStreamThread(StreamThread):
    """A stream thread whose batches have spans with a link to each publish in them."""

    def __init__(
        self, pipeline: Pipeline, clients: Clients, runtime: RuntimeConfig, codec: Codec, *, spans: Spans
    ) -> None:
        super().__init__(pipeline, clients, runtime, codec)
        self._spans = spans
        self._name = pipeline.name

    def _process_batch(self, task: Task, batch: Sequence[Record]) -> None:
        with self._spans.process(self._name, task.partition, batch):
            super()._process_batch(task, batch)
