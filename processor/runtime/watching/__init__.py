"""What a worker watches: its topics, its rivals, its own tasks."""
