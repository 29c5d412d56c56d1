"""The encode pool, a third pool beside prefill and decode."""
