"""The columns of a topic's records, from a schema or from the records themselves."""
