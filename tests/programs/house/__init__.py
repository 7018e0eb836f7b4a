"""The shape of the code: what a newcomer has to find his way in, counted."""
