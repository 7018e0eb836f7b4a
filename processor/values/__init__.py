"""Values that several folders share: their kinds, instants, the texts of keys, and paths. Pure."""
