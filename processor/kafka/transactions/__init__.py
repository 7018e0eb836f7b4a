"""Transactions as brokers see them: listed, explained, ended."""
