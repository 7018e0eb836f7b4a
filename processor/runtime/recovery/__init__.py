"""Restores the states of partitions from Kafka, keeps standbys, and manages their directories on disk.

`restorer` conducts a restore: `state_directory` opens the state, `restore_range` asks for the offsets to restore,
`log_replay` replays them, `job` holds the progress of a partition, shows it and detects stalls, `input_position`
decides where the input begins, and `input_comparison` finds deletes that have gone from it. `state_cleaner` removes
directories that are no longer needed. `standbys` are copies of states that other workers own; `assignment_forecast`
chooses the partitions.
"""
