"""Merges runs of plain commands of one key, compiled or in Python."""
