"""Requests to a cluster about its topics, groups and offsets."""
