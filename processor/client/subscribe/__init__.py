"""The subscribing half of the client: calls, streams and subscriptions."""
