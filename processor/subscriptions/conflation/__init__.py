"""Updates that wait for the end of a subscription's conflation interval."""
