"""The loop of a stream thread: it polls, processes, sends and commits.

`stream_thread` is the loop, and `clients` are its collaborators. `transactions` sends and commits the output of tasks,
`state_access` guards and writes their states, and `held_tasks` holds partitions that cannot go on. `task_metrics` and
`task_reports` show the tasks, `watchdog` observes stuck calls, and `committer` has one commit for each guarantee.
"""
