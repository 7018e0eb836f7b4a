"""Copies a topic so that each key changes at most once per interval (spec conflation.md)."""

from processor.builtin.conflate.conflate import Conflate

__all__ = ["Conflate"]
