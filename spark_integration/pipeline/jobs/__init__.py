"""The built-in jobs of a pipeline, one file each."""
