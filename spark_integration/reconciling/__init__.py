"""Compares the SOW topic of a family with replays of its delta topic and its archive, and with a table."""
