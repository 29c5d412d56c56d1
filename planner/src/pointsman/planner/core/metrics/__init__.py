"""What is seen: pages of /metrics and answers of Prometheus in, an Observation out."""
