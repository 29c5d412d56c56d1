"""Thin Kubernetes access: auth, server-side apply, mirror, Lease election, Events."""
