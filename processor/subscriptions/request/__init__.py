"""A subscription as it is asked for: its topic, options, filter, order, rights, and what these make of a record.

Nothing here knows of other subscribers, or of the records that are there.
"""
