"""Identities of clients, and their rights."""
