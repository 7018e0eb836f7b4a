"""The worker process: its threads, its signals, its memory, its metrics and its end."""
