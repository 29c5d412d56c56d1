"""Benchmarks of elastic groups."""
