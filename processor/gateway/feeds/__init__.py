"""Topics, as the gateway keeps them: read from Kafka on a thread each, with an engine on the event loop."""
