"""Indexes: the filters that a record may match, and the records that a filter may match."""
