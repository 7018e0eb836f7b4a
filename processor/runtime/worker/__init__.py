"""Runs the worker process.

`worker` starts and ends its threads, which `assembly` builds; `supervision` restarts failed pipelines, and
`fenced_pipelines` says which of them may merge. `health` judges and serves the health of the process; `worker_identity`
names it on its machine, and finds rivals with the same name; `watcher` runs the periodic jobs. `os_process`
has the allocator, the signals and the last report of the process, `logging_setup` its log.
"""
