"""A third party's plug-in for Sowstream: it imports `processor.api`, and nothing else of it."""
