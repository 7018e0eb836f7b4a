"""The publishing half of the client: sends commands and waits for their acks."""
