"""`sowstream bench`: how fast one worker is on this machine, beside the most that its client library could do."""
