"""Questions to a cluster: its topics, groups and offsets."""
