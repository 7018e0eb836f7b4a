"""The feeds of the demo: simulated orders and prices, published at a chosen rate."""
