"""The contract of an encode worker's endpoint, as the gateway uses it.

Every stand-in for an encode worker and the real one run these same tests. A test module imports them
(``from contracts.encode_api import *``) and defines the fixture ``encoding_worker``: one that has the encode role.
"""

from typing import Any

import aiohttp

from contracts.engine_api import Serving
from fixtures.images import data_url, png

__all__ = [
    "test_a_body_for_another_model_is_refused",
    "test_a_body_without_images_has_no_embeddings",
    "test_an_image_that_it_has_is_answered_again",
    "test_each_image_has_an_entry_under_its_id",
]

CAT, DOG = ("a" * 63 + digit for digit in "01")


def body(model: str, *images: str) -> dict[str, Any]:
    """A chat with an image for each id; its picture depends on the id."""
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(png(56, 56, seed=int(image[-1])))}, "uuid": image}
        for image in images
    ]
    return {"model": model, "messages": [{"role": "user", "content": parts}], "max_tokens": 1, "stream": False}


async def post(worker: Serving, asked: Any) -> tuple[int, Any]:
    """Status and JSON of the answer."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
        session.post(worker.url + "/v1/chat/completions", json=asked) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


async def test_each_image_has_an_entry_under_its_id(encoding_worker: Serving) -> None:
    status, answer = await post(encoding_worker, body(encoding_worker.model, CAT, DOG))
    assert status == 200, answer
    assert set(answer["ec_transfer_params"]) == {CAT, DOG}
    assert all(isinstance(entry, dict) and entry for entry in answer["ec_transfer_params"].values())


async def test_an_image_that_it_has_is_answered_again(encoding_worker: Serving) -> None:
    asked = body(encoding_worker.model, CAT)
    first, second = [(await post(encoding_worker, asked))[1]["ec_transfer_params"][CAT] for _ in range(2)]
    assert first == second, "a gateway uses an answer again, so it does not change while the worker lives"


async def test_a_body_for_another_model_is_refused(encoding_worker: Serving) -> None:
    status, answer = await post(encoding_worker, body("another", CAT))
    assert 400 <= status < 500, answer


async def test_a_body_without_images_has_no_embeddings(encoding_worker: Serving) -> None:
    _, answer = await post(encoding_worker, body(encoding_worker.model))
    assert not answer.get("ec_transfer_params")
