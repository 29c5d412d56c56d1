"""Fixtures of the workers' integration tests."""

from fixtures.services import make_service, own_nats, service, shared_nats

__all__ = ["make_service", "own_nats", "service", "shared_nats"]
