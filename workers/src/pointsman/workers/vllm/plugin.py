"""What vLLM needs mended when it moves KV with NIXL on CPU, as a plugin that vLLM loads in each of its processes.

Registered as entry point ``pointsman`` of the group ``vllm.general_plugins``; may be called more than once.

* NIXL's Python API asks for a progress thread that never sleeps: an idle engine burns a whole core. A delay of 1 ms
  brings that to a few percent and costs the transfers nothing.
* vLLM's NIXL connector pins the engine's main thread to the last core of each NUMA node. Two engines on one computer
  then share that core while the others idle.
* vLLM binds the publisher of KV events only to all interfaces, and to IPv4 ones; where ``POINTSMAN_BIND_HOST`` is an
  address (pods that share one network) or ``::`` (a cluster without IPv4) it has to bind to that.
"""

import importlib.util
import os
from typing import Any, Final

from pointsman.api.protocol import names

PROGRESS_DELAY_US: Final = 1000


def register() -> None:
    """Mend this process. Off CPU, and with the default bind address, nothing is changed."""
    from vllm.platforms import current_platform

    bind_host = os.environ.get(names.ENV_BIND_HOST, "0.0.0.0")
    if bind_host != "0.0.0.0":
        _bind_kv_events(ipv6=":" in bind_host)
    if current_platform.is_cpu():
        _do_not_pin()
        if importlib.util.find_spec("nixl") is not None:
            _let_progress_thread_sleep()


def _bind_kv_events(*, ipv6: bool) -> None:
    import zmq
    from vllm.distributed.kv_events import ZmqEventPublisher

    ZmqEventPublisher._is_bind_endpoint = staticmethod(lambda endpoint: True)
    if ipv6:
        zmq.Context.instance().setsockopt(zmq.IPV6, 1)  # the publisher's context; of sockets opened from now on


def _do_not_pin() -> None:
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.discover_numa_topology = classmethod(lambda cls: [])


def _let_progress_thread_sleep() -> None:
    from nixl._api import nixlBind

    original: Any = nixlBind.nixlAgentConfig
    if original.__name__ == "SleepyAgentConfig":
        return

    class SleepyAgentConfig(original):  # type: ignore[misc]  # a pybind class
        """An agent configuration whose progress thread sleeps at least ``PROGRESS_DELAY_US`` between rounds."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, max(value, PROGRESS_DELAY_US) if name == "pthrDelay" else value)

    nixlBind.nixlAgentConfig = SleepyAgentConfig
