"""Looks into the local states of stopped workers: `look` shows them, `verify` compares them with their topics."""
