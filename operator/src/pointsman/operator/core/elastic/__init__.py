"""Elastic groups: the objects that one is made of, and what is said about it. Pure."""
