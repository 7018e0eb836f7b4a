"""Reads and writes the two topics that all families of an installation share.

`directory` is the topic directory, `control` the control topic. `processor.topics` has the rules about topics in
general, also about these two.
"""
