"""The state of the world as a mapping: in memory, or on disk."""
