"""`sowstream bench`: measures the speed of one worker on this machine, next to the ceiling of its client library.

In reading order: `plan` has the options, the expected duration and the machine, `run` the sequence of measurements,
`setup` a worker's settings and the input, `programs` runs and times the ceiling and the worker, `result` computes and
prints the figures.
"""
