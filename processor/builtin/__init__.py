"""The built-in processors, registered and hosted like anybody's: they use nothing but `processor.api`."""
