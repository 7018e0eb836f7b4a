"""Restores the states of partitions from Kafka, and manages their directories on disk.

`restorer` conducts a restore: `state_directory` opens the state, `target` asks for the offsets to restore, `log_replay`
replays them, `redelivered` finds records to be recognised when they come again, and `input_position` decides where the
input begins. `stall` and `progress` watch it; `state_cleaner` removes directories that are no longer needed.
"""
