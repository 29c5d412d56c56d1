"""The manager of an elastic group in the image of its instances: vLLM's CUDA build, on a node without a GPU."""

import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from fixtures.elastic_group import ARGUMENTS
from fixtures.engines import Engines, worker_environment
from pointsman.api.protocol import names
from waiting import until


def test_the_manager_of_a_cuda_build_needs_no_gpu(engines: Engines, tmp_path: Path) -> None:
    """vLLM knows its CPU build by its version; another one is put before it on the path."""
    build = tmp_path / "vllm-0.32.0.dist-info"
    build.mkdir()
    (build / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    settings = engines.settings("manager", block_size=32)
    variables = engines.environment.variables() | worker_environment(settings)
    variables["PYTHONPATH"] = f"{tmp_path}:{variables['PYTHONPATH']}"
    instances = tmp_path / "instances"
    instances.write_text("")
    variables |= {"POINTSMAN_INSTANCES_FILE": str(instances), "POINTSMAN_LATENCY_MODEL_FILE": str(tmp_path / "model")}
    log = tmp_path / "log"
    argv = [str(engines.environment.python), "-m", "pointsman.workers.elastic.manager", *ARGUMENTS]
    with log.open("w") as output:
        process = subprocess.Popen(argv, env=variables, stdout=output, stderr=output)

    def is_healthy() -> bool:
        assert process.poll() is None, log.read_text()[-2000:]
        with suppress(OSError), urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    url = names.address_url("http", settings.pod_ip, names.ENGINE_PORT)
    try:
        until(is_healthy, "the manager answers")
    finally:
        process.kill()
        process.wait()
