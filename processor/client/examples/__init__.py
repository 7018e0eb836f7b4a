"""Programs to read and to run: what a client is used for."""
