"""Checks everything that Sowstream needs: each finding has a level, the state found, and the remedy."""

from processor.tools.doctor.examine import Finding, examine

__all__ = ["Finding", "examine"]
