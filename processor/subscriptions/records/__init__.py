"""The records that an engine knows: those of now and of the last updates, their indexes, orders and groups."""
