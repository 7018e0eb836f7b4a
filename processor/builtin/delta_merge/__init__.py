"""Merges publishes and deltas into the record of their key: from `publish` to `sow` and `delta` (spec merge.md)."""
