"""`merge_stream`: a Structured Streaming job in the place of workers."""
