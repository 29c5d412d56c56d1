"""A service on many workers as a discrete-event simulation: what a policy would do to a trace, without a GPU."""
