"""The command line: one file for commands of one kind."""
