"""What gateways and workers do with the next request: threshold, bounds of flow control, prefill token budget."""
