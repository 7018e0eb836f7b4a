"""Programs about the gateway: the law of composition, security, load."""
