"""The two topics that all families of an installation share: the topic directory and the control topic."""
