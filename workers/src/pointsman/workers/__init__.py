"""What runs inside the engine process: roles, remote prefill, queue, metrics."""
