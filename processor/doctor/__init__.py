"""Looks at everything Sowstream needs: each check says what it found, how bad that is, and what to do."""

from processor.doctor.examine import examine
from processor.doctor.finding import Finding

__all__ = ["Finding", "examine"]
