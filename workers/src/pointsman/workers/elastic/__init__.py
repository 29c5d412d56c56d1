"""Elastic sequence parallelism: instances that form groups of any size between two iterations."""
