"""Finds the duplicates of a merge by the sequences of its records."""
