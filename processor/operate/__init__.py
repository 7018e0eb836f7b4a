"""For operators: looks at an installation, checks it, and sends dead letters back. No worker needs it."""
