"""OpenTelemetry, off unless `telemetry` is set: `tracing` makes spans, `metrics` exports metrics.

A record's trace travels in its headers `traceparent` and `tracestate`, from the publish to SOW and delta. A batch
merges many publishes, so spans are joined by links and not by parents::

    publish orders ◀──link── process orders      a batch, with a link for each of its publishes
         ▲  ▲──────link───── receive orders      a message that a subscriber took
         └─────────link───── settle orders       the last ack of the command

OpenTelemetry is imported only where the settings ask for it.

`page_server` is the HTTP server of metrics and health pages.
"""
