"""Reads topics as tables (`read`) and streams (`stream`)."""
