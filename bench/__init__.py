"""Benchmarks: each writes rows to bench/results, and is a make target."""
