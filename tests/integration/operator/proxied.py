"""An operator that reaches the API server through a proxy."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fixtures.fault_proxy import FaultProxy
from fixtures.operators import ForkedOperator, OperatorProcess


@pytest.fixture
async def proxy(operator_kubeconfig: Path, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(operator_kubeconfig, tmp_path) as running:
        yield running


@pytest.fixture
def operator(proxy: FaultProxy, namespace: str) -> Iterator[OperatorProcess]:
    """One that reaches the API server through the proxy only."""
    process = ForkedOperator(proxy.kubeconfig, namespace)
    process.start()
    yield process
    process.kill()
