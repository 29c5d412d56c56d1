"""Speed and memory of what each request passes in the gateway: ``make bench-request-path``."""
