"""`merge_batch`: merges a history into SOW records and hands them over to workers."""
