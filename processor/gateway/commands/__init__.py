"""Commands of clients: checked against their rights, in order, and published on threads."""
