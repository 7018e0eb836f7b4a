"""Transactions as brokers see them: finds open ones, reads the coordinators' decisions, writes markers."""
