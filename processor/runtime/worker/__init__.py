"""Runs the worker process.

`worker` starts and ends its threads, `supervision` restarts failed pipelines, `watchdog` ends a process with a stuck
thread, `slot` is its identity on the machine. `signals`, `allocator`, `logging_setup`, `metrics` and `exit_report` do
as they are called.
"""
