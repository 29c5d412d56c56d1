"""Benchmarks of images and their embeddings."""
