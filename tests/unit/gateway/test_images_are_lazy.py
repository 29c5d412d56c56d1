"""A service of texts pays nothing for images: no module of theirs is imported before the first one."""

import subprocess
import sys

SERVE_A_TEXT = """
import asyncio, json, sys
import pointsman.gateway.__main__
from pointsman.api.protocol.control import ModelInfo
from pointsman.gateway.core.requests import Endpoint, read
from pointsman.gateway.planning import plan
from pointsman.gateway.processor import Model
info = ModelInfo(served_name="m", max_model_len=400, block_size=8, files=(), digest="d")
content = [{"type": "text", "text": "hello"}]
for messages in ([{"role": "user", "content": "hello"}], [{"role": "user", "content": content}]):
    ask = read(Endpoint.CHAT, json.dumps({"model": "m", "messages": messages}).encode(), "m")
    asyncio.run(plan(ask, Model(info, None, False, False), request_id="r", created=1))
print(json.dumps(sorted(sys.modules)))
"""

OF_IMAGES = (
    "pointsman.gateway.images",
    "pointsman.gateway.core.image_header",
    "pointsman.gateway.core.image_limits",
    "pointsman.gateway.core.public_addresses",
    "pointsman.gateway.core.encode_body",
    "pointsman.gateway.core.embedding_book",
    "pycares",
    "PIL",
    "torch",
)


def test_a_request_of_texts_imports_nothing_of_images() -> None:
    done = subprocess.run([sys.executable, "-c", SERVE_A_TEXT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for module in OF_IMAGES:
        assert f'"{module}' not in done.stdout, module
    assert '"pointsman.gateway.core.image_parts"' in done.stdout, "this looks for images"
