"""Checks everything that Sowstream needs: each finding has a level, the state found, and the remedy."""

from processor.tools.doctor.examine import examine
from processor.tools.doctor.finding import Finding
from processor.tools.doctor.roles import ROLES, Role

__all__ = ["ROLES", "Finding", "Role", "examine"]
