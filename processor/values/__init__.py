"""Values that several rooms share: instants, paths, numbers, kinds of values. Pure."""
