"""Topics as tables and streams: `read`, `stream`, and what they are made of."""
