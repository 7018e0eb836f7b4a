"""The spans of publishers, workers and subscribers, joined by links, and the connection to OpenTelemetry's SDK.

Spans go to the application's own provider, or to one that exports by OTLP over HTTP.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from processor.errors import ConfigurationError
from processor.wire.headers import has_trace, trace_headers, trace_of

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span, SpanContext, Tracer

    from processor.config.runtime import TelemetryConfig
    from processor.record import Headers, Record
    from processor.wire.ack import Ack


SCOPE = "sowstream"


def tracer(settings: TelemetryConfig) -> Tracer:
    """The tracer of this process.

    An application that has set a tracer provider gets the spans there, with its own exporter; otherwise they are sent
    to the collector of the settings.

    Raises:
        ConfigurationError: OpenTelemetry's packages are not installed.
    """
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an optional package
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as well
    except ImportError as error:
        raise not_installed(error) from None
    provider: Any = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = _exporting(settings.endpoint)
    return provider.get_tracer(SCOPE, version("sowstream"))  # type: ignore[no-any-return]


def resource() -> Resource:
    """The process as OpenTelemetry describes it; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have priority."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an optional package

    name = os.environ.get("OTEL_SERVICE_NAME") or "sowstream"
    return Resource.create({"service.name": name, "service.version": version("sowstream")})


def signal_address(endpoint: str | None, signal: str) -> str | None:
    """The address of one signal of a collector; None leaves it to OpenTelemetry's variables."""
    return None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{signal}"


def not_installed(error: ImportError) -> ConfigurationError:
    """The error of a missing package, with the command that mends it."""
    return ConfigurationError(
        f"telemetry needs a package that is not installed ({error.name}): pip install 'sowstream[otel]'"
    )


@functools.cache
def _exporting(endpoint: str | None) -> TracerProvider:
    """One provider for all clients and pipelines of a process; at its end it exports what is left."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
    except ImportError as error:
        raise not_installed(error) from None
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an optional package
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as well

    provider = TracerProvider(resource=resource())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(signal_address(endpoint, "traces"))))
    return provider


LINKS_MAX: Final = 128
"""Most links of one span, as many as OpenTelemetry's SDK keeps by default; a batch with more has several spans."""


class Spans:
    """Makes the spans of one process. Any thread."""

    def __init__(self, settings: TelemetryConfig) -> None:
        """Connect to OpenTelemetry.

        Raises:
            ConfigurationError: its packages are not installed.
        """
        self._tracer = tracer(settings)
        from opentelemetry import trace  # noqa: PLC0415 - an optional package
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def publish(self, topic: str, command: str, headers: Headers) -> Iterator[SpanContext | None]:
        """Surround the sending of a command with a span, and add its trace to the headers.

        A command whose headers have a trace already keeps it: its publisher has a span of his own.
        """
        if has_trace(headers):
            yield None
            return
        kind = self._trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(
            f"publish {topic}", kind=kind, attributes=_attributes(topic, "publish", command=command)
        ) as span:
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
            headers += trace_headers(carrier)
            yield span.get_span_context()

    def settle(self, topic: str, published: SpanContext, future: Future[Ack]) -> None:
        """Make a span of the time until the last ack of a command, linked to its publish."""
        began_ns = time.time_ns()

        def settled(done: Future[Ack]) -> None:
            attributes = _attributes(topic, "settle")
            error = None if done.cancelled() else done.exception()
            if done.cancelled() or error is not None:
                attributes["error.type"] = "cancelled" if error is None else type(error).__name__
            else:
                ack = done.result()
                attributes["sowstream.ack.type"] = ack.ack_type
                attributes["sowstream.ack.status"] = ack.status
            self._span(f"settle {topic}", attributes, [self._trace.Link(published)], began_ns)

        future.add_done_callback(settled)

    @contextmanager
    def process(self, topic: str, partition: int, records: Sequence[Record]) -> Iterator[None]:
        """Surround the processing of a batch with a span that links to each publish in it; none without a trace."""
        links = self._links(trace_of(record.headers) for record in records if record.headers)
        if not links:
            yield
            return
        began_ns = time.time_ns()
        error: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            error = caught
            raise
        finally:
            attributes = _attributes(topic, "process")
            attributes["messaging.destination.partition.id"] = str(partition)
            attributes["messaging.batch.message_count"] = len(records)
            if error is not None:
                attributes["error.type"] = type(error).__name__
            for start in range(0, len(links), LINKS_MAX):
                self._span(f"process {topic}", attributes, links[start : start + LINKS_MAX], began_ns)

    def receive(self, topic: str, headers: Mapping[str, str]) -> None:
        """Make a span of the delivery of a message to a subscriber, linked to its publish; none without a trace."""
        if links := self._links([headers]):
            self._span(f"receive {topic}", _attributes(topic, "receive"), links, time.time_ns())

    def _links(self, carriers: Iterable[Mapping[str, str]]) -> list[Link]:
        """A link to each sampled span that carriers name, each once."""
        contexts: dict[tuple[int, int], SpanContext] = {}
        for carrier in carriers:
            if not carrier:
                continue
            root = self._trace.set_span_in_context(self._trace.INVALID_SPAN)
            context = self._trace.get_current_span(self._propagator.extract(carrier, root)).get_span_context()
            if context.is_valid and context.trace_flags.sampled:
                contexts[context.trace_id, context.span_id] = context
        return [self._trace.Link(context) for context in contexts.values()]

    def _span(self, name: str, attributes: dict[str, str | int], links: Sequence[Link], began_ns: int) -> None:
        """Make a span that has ended now. It has no parent: it may come long after the spans that it links to."""
        kind = self._trace.SpanKind.CONSUMER
        root = self._trace.set_span_in_context(self._trace.INVALID_SPAN)
        span: Span = self._tracer.start_span(
            name, context=root, kind=kind, attributes=attributes, links=links, start_time=began_ns
        )
        if "error.type" in attributes:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        span.end()


def spans_of(settings: TelemetryConfig) -> Spans | None:
    """The spans that the settings ask for; None: tracing is off.

    Raises:
        ConfigurationError: OpenTelemetry's packages are not installed.
    """
    return Spans(settings) if settings.traces else None


def _attributes(topic: str, operation: str, *, command: str | None = None) -> dict[str, str | int]:
    """The attributes of OpenTelemetry's conventions for messaging; never a key or data of a record."""
    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
    }
    if command is not None:
        attributes["sowstream.command"] = command
    return attributes
