"""Every header and envelope of every topic: written and read here only. Pure."""
