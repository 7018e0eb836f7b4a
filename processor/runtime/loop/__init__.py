"""The loop of a stream thread: it polls, processes, sends and commits, and watches what it needs for that."""
