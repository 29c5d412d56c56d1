"""Which transports of UCX an embedding may be written with: those whose writes end with the agent."""

import pytest

from pointsman.workers.multimodal.transfer.nixl_path import refusal


@pytest.mark.parametrize("tls", [None, "tcp,self", "rc,ud,tcp", "^cma,knem,xpmem", "^shm", "^sm,tcp"])
def test_transports_whose_writes_end_with_the_agent_are_used(tls: str | None) -> None:
    assert refusal({} if tls is None else {"UCX_TLS": tls}) is None


@pytest.mark.parametrize("tls", ["all", "shm,self", "sm", "tcp,cma", "xpmem", "^tcp", "^cma"])
def test_transports_that_write_by_system_calls_of_the_peer_are_refused_by_name(tls: str) -> None:
    said = refusal({"UCX_TLS": tls})
    assert said is not None
    assert repr(tls) in said
