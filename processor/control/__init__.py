"""Operators' orders to workers, and the workers' notices."""

from processor.control.thread import ControlThread

__all__ = ["ControlThread"]
