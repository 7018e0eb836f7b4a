"""`merge_batch`: a history folded into SOW records, and handed over to workers."""
