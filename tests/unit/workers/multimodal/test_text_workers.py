"""What a service without images pays for those with images: nothing."""

import subprocess
import sys

PROGRAM = """
import sys
import pointsman.workers.middleware, pointsman.workers.vllm.flags, pointsman.workers.vllm.plugin
print(*(name for name in sys.modules if "workers.multimodal" in name or name == "torchvision"))
"""


def test_a_worker_of_text_imports_nothing_of_images() -> None:
    imported = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert imported.stdout.split() == []
