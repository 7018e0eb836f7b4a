"""Producers: without a transaction, in one, and in stages."""
