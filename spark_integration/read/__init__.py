"""Reads topics as tables and streams, in SQL as `format("sow")`, and as rows of a view."""
