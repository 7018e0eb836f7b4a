"""Runs processors on Kafka, exactly once: decode → merge → stage → emit → commit → apply.

In this folder is the loop: `assembly` builds a `stream_thread`, which has a `task` for each partition, a
`hosted_processor` for each task, `transactions` for their output, a `commit_policy` and a `write_back`; `state_guard`
surrounds each use of a state. Of the folders `process` runs the threads, `recovery` restores states, `standby` keeps
copies of them, `holding` deals with partitions that cannot go on, and `watching` observes topics, tasks and rivals.
The context that a processor sees is in `hosting`.

One record's walk:

1. `stream_thread.py: StreamThread._turn` polls the consumer (`_poll`) and processes the messages in a transaction
2. `stream_thread.py: StreamThread._process_and_commit` hands each partition's messages to its task (`_process_batch`)
3. `task.py: Task.process` → `hosted_processor.py: HostedProcessor.process` calls the plug-in with a slice of records
4. decode, merge — the plug-in's `process`: `builtin/delta_merge/delta_merge.py: DeltaMerge.process`, for example
5. stage — `store/layered_state.py: put_many` keeps the new state in memory, `hosting/context.py:
   TaskContext.forward_many` its outputs
6. emit — `StreamThread._emit` → `transactions.py: Transactions.send` sends the outputs to Kafka
7. `commit_policy.py: CommitPolicy.due` decides whether to commit now
8. commit — `StreamThread._commit` → `Transactions.begin_commit`: marks and input offsets join the transaction
9. `StreamThread._finish_commit` → `Transactions.finish` waits for Kafka; `task.py: Task.committed` commits the state
10. apply — `StreamThread._apply` → `write_back.py: WriteBack.pieces`: committed records reach RocksDB, a piece a turn

A failed step raises `TransactionAborted`: `StreamThread._transaction` rolls back and rewinds all tasks.
"""
