"""The publishing half of the client: commands out, acks in."""
