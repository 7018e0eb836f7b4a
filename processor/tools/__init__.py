"""Programs for people: nothing here is needed by a worker."""
