"""The clients that write and read records: producers with and without transactions, readers of logs and of groups."""
