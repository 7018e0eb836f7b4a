"""Keys of a SOW topic in wrong partitions: found, and brought home."""
