"""What vLLM is taught in each of its processes, as a plugin that it loads.

Registered as entry point ``pointsman`` of the group ``vllm.general_plugins``; may be called more than once. Grammars
can be resumed (``grammar_resume``), and Pointsman's records are printed. The rest is what moving KV with NIXL on CPU
needs mended:

* NIXL's Python API asks for a progress thread that never sleeps: an idle engine burns a whole core. A delay of 1 ms
  brings that to a few percent and costs the transfers nothing.
* vLLM's NIXL connector pins the engine's main thread to the last core of each NUMA node. Two engines on one computer
  then share that core while the others idle.
"""

import importlib.util
import logging
from contextlib import suppress
from typing import Any, Final

from pointsman.process.errors import BadSettings
from pointsman.process.logs import OURS, configure_logs_of_a_guest
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.vllm import grammar_resume

PROGRESS_DELAY_US: Final = 1000


def register() -> None:
    """Teach and mend this process."""
    from vllm.platforms import current_platform

    _configure_logs()
    grammar_resume.teach()

    if current_platform.is_cpu():
        _do_not_pin()
        if importlib.util.find_spec("nixl") is not None:
            _let_progress_thread_sleep()


def _configure_logs() -> None:
    """Of a process that vLLM spawned in a worker's pod; the server's own process, and its forks, have done it."""
    if logging.getLogger(OURS).handlers:
        return
    with suppress(BadSettings):  # vLLM with this plugin, but no worker of ours
        settings = WorkerSettings.read()
        configure_logs_of_a_guest(settings.log_level, settings.log_format, settings.log_fields)


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
