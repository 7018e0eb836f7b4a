"""Keeps standbys: copies on this worker's disk of the states of partitions that other workers own.

`group_watcher` asks for the members of the group, `assignment_forecast` computes which partitions would come to this
worker, and `standbys` keeps their states up to date.
"""
