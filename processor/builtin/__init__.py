"""The built-in processors, without Kafka and without a store.

They are registered and hosted like anybody's; `processor.api.builtin` lists what they have beyond third parties'.
"""
