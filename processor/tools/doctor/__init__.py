"""Looks at everything Sowstream needs: each check says what it found, how bad that is, and what to do."""

from processor.tools.doctor.examine import examine
from processor.tools.doctor.finding import Finding

__all__ = ["Finding", "examine"]
