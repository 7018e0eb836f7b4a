"""Runs processors on Kafka, exactly once: decode → merge → stage → emit → commit → apply.

Three folders import each other in one direction: `worker` is the process that runs threads, `loop` one thread with its
transactions, held tasks and watches, and `recovery` restores states and keeps standbys. Below them in this folder is
what all need: a `task` for each partition with its `hosted_processor`, its `rejections`, and the `metrics`. The context
that a processor sees is in `hosting`.

One record's walk:

1. `loop/stream_thread.py: StreamThread._turn` polls the consumer (`_poll`) and processes the messages in a transaction
2. `loop/stream_thread.py: StreamThread._process_and_commit` hands the messages of partitions to
   their tasks (`_process_batch`)
3. `hosted_processor.py: HostedProcessor.process`, the part of a task that makes all calls, passes slices of records to
   the plug-in
4. decode, merge — the plug-in's `process`: `builtin/delta_merge/delta_merge.py: DeltaMerge.process`, for example
5. stage — `store/layered_state.py: put_many` keeps the new state in memory, `hosting/context.py:
   TaskContext.forward_many` its outputs
6. emit — `StreamThread._send` → `loop/transactions.py: Transactions.send` sends the outputs to Kafka, if there are any
7. `loop/transactions.py: CommitPolicy.due` decides whether to commit now
8. commit — `StreamThread._commit` → `Transactions.begin_commit`: marks and input offsets join the transaction
9. `StreamThread._finish_commit` → `Transactions.finish` waits for Kafka; `task.py: Task.committed` commits the state
10. apply — `StreamThread._apply` → `loop/state_access.py: WriteBack.pieces`: committed records reach RocksDB, a piece
    a turn

A failed step raises `TransactionAborted`: `StreamThread._transaction` rolls back and rewinds all tasks.
"""
