"""What the plugin does in each process of vLLM, and mends on CPU."""

import os
import select
import subprocess
from contextlib import suppress

import psutil

from fixtures.engines import PlainEngines, RunningEngine
from fixtures.workers import settings
from pointsman.local.engine.environment import EngineEnvironment

SPAN_SECONDS = 3.0


def core_seconds(engine: RunningEngine) -> float:
    """Processor time that all processes of an engine have used, seconds."""
    return sum(t.user + t.system for t in (psutil.Process(pid).cpu_times() for pid in engine.processes()))


def test_an_idle_engine_leaves_the_processor_alone(plain_engines: PlainEngines) -> None:
    before = core_seconds(plain_engines.decode)
    assert not select.select([plain_engines.decode.process], [], [], SPAN_SECONDS)[0]
    used = core_seconds(plain_engines.decode) - before
    assert used / SPAN_SECONDS < 0.2, "NIXL's progress thread would use a whole core"


def test_no_engine_is_pinned_to_a_core(plain_engines: PlainEngines) -> None:
    everything = os.sched_getaffinity(0)
    for engine in (plain_engines.prefill, plain_engines.decode):
        assert len(engine.processes()) >= 2
        for pid in engine.processes():
            for thread in psutil.Process(pid).threads():
                with suppress(ProcessLookupError):  # a thread may have ended since it was listed
                    assert os.sched_getaffinity(thread.id) == everything


def test_no_port_is_open_for_kv_events_and_none_outside_the_pods_address(plain_engines: PlainEngines) -> None:
    engine = plain_engines.decode
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for pid in engine.processes()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {(engine.address, port) for port in (8000, 5600)} <= listening
    assert not {port for _, port in listening} & {5557, 5558}, "token ids are in the events"
    assert all(address.startswith("127.") for address, _ in listening), "something listens outside the computer"


def test_a_process_that_vllm_spawns_prints_the_fields_of_pointsmans_records(
    engine_environment: EngineEnvironment,
) -> None:
    """vLLM calls the plugin in each of its processes; on GPUs it spawns them, so they inherit no logging."""
    of_pod = settings("decode-0").model_dump(mode="json", exclude_unset=True, exclude_none=True)
    of_pod |= {"control_token": "a-token-of-these-tests"}
    environment = {f"POINTSMAN_{name.upper()}": str(value) for name, value in of_pod.items()}
    spawned = (
        "import logging; from pointsman.workers.vllm.plugin import register; register(); "
        "logging.getLogger('pointsman.workers').warning('embedding not fetched', extra={'address': '10.0.0.1:1'})"
    )
    done = subprocess.run(
        [engine_environment.python, "-c", spawned],
        env=engine_environment.variables() | environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert '"worker": "decode-0", "address": "10.0.0.1:1"' in done.stderr
