"""Hosts processors on Kafka, exactly once: the only part that knows all others.

In reading order: `pipeline` says what runs, `worker` starts it, `stream_thread` is the loop, `task` one partition of
it, `context` what the processor sees, `commit_policy` when to commit, `restore` how a partition's state comes back,
`metrics` what can be watched.
"""
