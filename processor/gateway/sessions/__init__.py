"""Sessions: the subscriptions of one client, independent of the transport."""
