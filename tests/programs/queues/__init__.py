"""Queues under load and faults (queues.md): many consumers, kills of consumers, workers and the broker, aborts.

- `consumer` is one consumer process, which writes a line when it receives a message and one when it has handled it;
- `run` feeds the topic, kills, rolls back transactions on the queue's topic, and reads it with an independent consumer;
- `checks` finds the broken promises in these lines.
"""
