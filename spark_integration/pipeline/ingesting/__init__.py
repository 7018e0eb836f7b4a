"""Turns raw input into commands: where rows come from, which of them fit, and the files of those that do not."""
