"""Proving a role with a real request, before any client's request depends on it."""

import asyncio
import base64
import logging
import random
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp

from pointsman.api.protocol import headers
from pointsman.api.protocol.control import VerifyRequest, VerifyResult, accepted_tokens
from pointsman.api.protocol.names import Role
from pointsman.workers.core.leases import LeaseLedger
from pointsman.workers.core.prompts import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    EC_TRANSFER_PARAMS,
    KV_TRANSFER_PARAMS,
    encode_leg,
    prefill_leg,
)
from pointsman.workers.engine import Engine
from pointsman.workers.errors import EngineUnavailable, WorkerError
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.types import EngineAnswer

log = logging.getLogger(__name__)

_WORDS = ("signal", "lever", "points", "track", "siding", "junction", "platform", "engine", "whistle", "sleeper")
_ROUND_TRIPS = 2  # two engines may break a near tie between two tokens differently; twice in a row they do not


class VerificationFailed(WorkerError):
    """The role could not be proved; says what was seen."""


class Verifier:
    """``clock``: monotonic seconds."""

    def __init__(
        self, settings: WorkerSettings, engine: Engine, ledger: LeaseLedger, *, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._ledger = ledger
        self._clock = clock

    async def verify(self, request: VerifyRequest) -> VerifyResult:
        """Run the real request that ``request`` describes."""
        begun_s = self._clock()
        try:
            async with asyncio.timeout(request.timeout_seconds):
                if request.role is Role.ENCODE:
                    detail = await self._encode()
                elif request.role is Role.PREFILL and request.partner_url is not None:
                    detail = await self._round_trip(request.partner_url)
                else:
                    detail = await self._one_token()
        except TimeoutError:
            ok, detail = False, f"no answer within {request.timeout_seconds:g} s"
        except (VerificationFailed, EngineUnavailable) as error:
            ok, detail = False, str(error)
        else:
            ok = True
        seconds = self._clock() - begun_s
        log.info(
            "verification passed" if ok else "verification failed",
            extra={"role": request.role.value, "seconds": round(seconds, 2), "detail": detail},
        )
        return VerifyResult(ok=ok, role=request.role, detail=detail, seconds=seconds)

    async def _one_token(self) -> str:
        leg = self._local_leg(await self._prompt())
        del leg["min_tokens"]  # the manager of an elastic group does not know it
        leg["ignore_eos"] = True  # any token will do
        answer = await self._engine.post(COMPLETIONS_PATH, leg, request_id=_new_id())
        _token(answer, "this engine")
        return "this engine answered one token"

    async def _encode(self) -> str:
        """Encode an image that no cache has seen, and fetch its embedding as a prefill worker does."""
        # only here: a worker of a service without encode workers loads none of it
        from pointsman.workers.multimodal.exchange.probe import fetch_once
        from pointsman.workers.multimodal.exchange.references import references
        from pointsman.workers.multimodal.transfer.errors import TransferError

        answer = await self._engine.post(
            CHAT_PATH, encode_leg(self._settings.served_name, _image()), request_id=_new_id()
        )
        if answer.status != 200:
            raise VerificationFailed(f"this engine: HTTP {answer.status}: {answer.body.get('error', '')}")
        token = self._settings.control_token.get_secret_value()
        found = references(answer.body.get(EC_TRANSFER_PARAMS), token).values()
        if not found:
            raise VerificationFailed("the engine's answer has no ec_transfer_params of this service")
        try:
            tokens = [(await fetch_once(reference, token)).num_tokens for reference in found]
        except (TransferError, OSError) as error:
            raise VerificationFailed(f"the embedding cannot be fetched: {error}") from error
        return f"this engine encoded an image, and its {sum(tokens)} tokens were fetched"

    async def _round_trip(self, partner_url: str) -> str:
        seen: list[tuple[int, int]] = []
        for _ in range(_ROUND_TRIPS):
            prompt = await self._prompt()
            request_id = _new_id()
            ours = await self._engine.post(
                COMPLETIONS_PATH, prefill_leg(self._settings.served_name, prompt, None), request_id=request_id
            )
            token = _token(ours, "the prefill leg")
            params = ours.body.get(KV_TRANSFER_PARAMS)
            if not isinstance(params, Mapping):
                raise VerificationFailed("the prefill leg returned no transfer parameters")
            self._ledger.begin(request_id, self._clock())
            theirs = await self._decode_at(partner_url, {**self._local_leg(prompt), KV_TRANSFER_PARAMS: dict(params)})
            self._ledger.end(request_id)
            seen.append((token, _token(theirs, partner_url)))
            if seen[-1][0] == seen[-1][1]:
                return f"{partner_url} pulled the KV of {len(prompt)} tokens and answered the same token"
        raise VerificationFailed(f"{partner_url} pulled the KV and answered other tokens: (ours, theirs) = {seen}")

    async def _decode_at(self, partner_url: str, body: Mapping[str, Any]) -> EngineAnswer:
        url = partner_url.rstrip("/") + COMPLETIONS_PATH
        answer = EngineAnswer(HTTPStatus.UNAUTHORIZED, {})
        try:
            async with aiohttp.ClientSession() as session:
                # While the token is replaced, a partner that runs knows the old one only.
                for token in accepted_tokens(self._settings.control_token.get_secret_value()):
                    sent = {headers.CONTROL_TOKEN: f"Bearer {token}", headers.VERIFICATION: "decode-leg"}
                    async with session.post(url, json=body, headers=sent) as response:
                        content = await response.json(content_type=None)
                        answer = EngineAnswer(response.status, content if isinstance(content, dict) else {})
                    if answer.status != HTTPStatus.UNAUTHORIZED:
                        break
                return answer
        except (aiohttp.ClientError, ValueError) as error:
            raise VerificationFailed(f"{partner_url}: {error or type(error).__name__}") from error

    async def _prompt(self) -> list[int]:
        """More than one block of tokens that no cache has seen."""
        length = self._settings.block_size + 2
        if self._engine.facts.max_model_len is not None:
            length = min(length, self._engine.facts.max_model_len - 1)
        words = " ".join(random.choices(_WORDS, k=length))
        body = {"model": self._settings.served_name, "prompt": words}
        answer = await self._engine.post("/tokenize", body, request_id=_new_id())
        tokens = answer.body.get("tokens")
        if not isinstance(tokens, list) or not tokens:
            raise VerificationFailed(f"/tokenize: HTTP {answer.status}: {answer.body.get('error', '')}")
        return tokens[:length]

    def _local_leg(self, prompt: list[int]) -> dict[str, Any]:
        leg = prefill_leg(self._settings.served_name, prompt, None)
        del leg[KV_TRANSFER_PARAMS]
        return leg


def _image() -> str:
    """A small PNG of random pixels, as a data URI."""
    side = 32
    rows = b"".join(b"\0" + random.randbytes(3 * side) for _ in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))

    header = struct.pack("!IIBBBBB", side, side, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _new_id() -> str:
    return f"verify-{uuid.uuid4().hex}"


def _token(answer: EngineAnswer, who: str) -> int:
    """The one token of a well-formed answer; raises VerificationFailed."""
    choices = answer.body.get("choices") or [{}]
    token_ids = choices[0].get("token_ids")
    if answer.status != 200 or answer.finish_reason == "abort" or not isinstance(token_ids, list) or not token_ids:
        raise VerificationFailed(
            f"{who}: HTTP {answer.status}, finish_reason {answer.finish_reason}: {answer.body.get('error', 'no token')}"
        )
    return int(token_ids[0])
