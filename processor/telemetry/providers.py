"""Connects to OpenTelemetry's SDK: the application's own provider of spans, or one that exports by OTLP over HTTP."""

from __future__ import annotations

import functools
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

    from processor.config.telemetry import TelemetryConfig

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
