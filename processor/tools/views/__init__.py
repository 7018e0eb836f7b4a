"""Rebuilds views whose definition has changed."""

from processor.tools.views.rebuild import ViewRebuild

__all__ = ["ViewRebuild"]
