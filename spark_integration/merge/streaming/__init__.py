"""`merge_stream`: a Structured Streaming job that replaces workers."""
