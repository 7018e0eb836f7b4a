"""Claims by `expect_version` (queues.md, rule 9): many clients claim the same records while workers are killed.

Each key is published once. Then several clients delta-publish `{"owner": me}` to it, all with its version as
`expect_version`. One of them must win, each of the others must get `VersionConflict`, and the record must name the
winner.

- `claimant` is one process of clients, which writes the outcome of each claim to a file;
- `run` starts the processes and the workers, kills workers at random moments, and reads the SOW topic at the end;
- `checks` finds the broken promises in the outcomes and the records.
"""
