"""Example programs: typical uses of the client."""
