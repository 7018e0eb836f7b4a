"""Watches a running worker's topics (`topic_watch`), its tasks (`task_metrics`) and rival installations (`rivals`)."""
