"""Draws the pictures of the documentation from real runs."""
