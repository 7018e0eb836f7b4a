"""A third party's plug-in: it knows `processor.api`, and nothing else of Sowstream."""
