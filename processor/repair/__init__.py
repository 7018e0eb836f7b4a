"""Repairs an installation on an operator's order, each by a command of its own. No worker needs it."""
