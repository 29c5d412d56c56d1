"""Claims of NATS: reading the server's authorization requests, and signing answers (JWT with Ed25519 keys).

The format is that of https://github.com/nats-io/jwt (v2) and https://github.com/nats-io/nkeys; how a server asks is in
https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_callout.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

GLOBAL_ACCOUNT: Final = "$G"
_ACCOUNT_PREFIX: Final = 0  # the first letter of the encoded key is then "A"
_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_UNLIMITED: Final = -1


class MalformedRequest(ValueError):
    """What the server sent is no authorization request."""


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """One connection that the server asks about. ``user_key`` and ``server_id`` go back in the answer."""

    server_id: str
    user_key: str
    user: str
    password: str
    client: str  # how it names itself

    def __repr__(self) -> str:
        return f"AuthorizationRequest(user={self.user!r}, client={self.client!r})"

    @classmethod
    def decode(cls, token: bytes) -> "AuthorizationRequest":
        """The request in a server's JWT. Raises MalformedRequest.

        Its signature is not checked: only the server can publish where this is read.
        """
        try:
            _, claims, _ = token.split(b".")
            asked = json.loads(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)))["nats"]
            options = asked["connect_opts"]
            return cls(
                server_id=asked["server_id"]["id"],
                user_key=asked["user_nkey"],
                user=options.get("user", ""),
                password=options.get("pass", ""),
                client=options.get("name", ""),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MalformedRequest(f"no authorization request: {type(error).__name__}") from error


class Issuer:
    """Signs as one account key, made from a seed of 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public_key: Final = _encode_key(_ACCOUNT_PREFIX, public)
        """As in ``auth_callout.issuer`` of the server's configuration."""

    def allow(
        self,
        request: AuthorizationRequest,
        permissions: Mapping[str, Mapping[str, list[str]]],
        *,
        now_s: float,
    ) -> str:
        """The answer that lets a connection in with these permissions, in the global account."""
        user = {
            "iat": int(now_s),
            "sub": request.user_key,
            "aud": GLOBAL_ACCOUNT,
            "name": request.user,
            "nats": {
                "type": "user",
                "version": 2,
                **permissions,
                "subs": _UNLIMITED,
                "data": _UNLIMITED,
                "payload": _UNLIMITED,
            },
        }
        return self._answer(request, {"jwt": self._sign(user)}, now_s)

    def refuse(self, request: AuthorizationRequest, why: str, *, now_s: float) -> str:
        """The answer that turns a connection away; ``why`` goes into the server's log."""
        return self._answer(request, {"error": why}, now_s)

    def _answer(self, request: AuthorizationRequest, said: Mapping[str, str], now_s: float) -> str:
        about = {"type": "authorization_response", "version": 2, **said}
        return self._sign(
            {"iat": int(now_s), "sub": request.user_key, "aud": request.server_id, "nats": about},
        )

    def _sign(self, claims: Mapping[str, Any]) -> str:
        parts = (_HEADER, {**claims, "iss": self.public_key})
        signed = ".".join(_encode(json.dumps(part, separators=(",", ":")).encode()) for part in parts)
        return f"{signed}.{_encode(self._key.sign(signed.encode()))}"


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _encode_key(prefix: int, raw: bytes) -> str:
    framed = bytes([prefix]) + raw
    return base64.b32encode(framed + _crc16(framed).to_bytes(2, "little")).decode().rstrip("=")


def _crc16(data: bytes) -> int:
    """CRC-16/XMODEM, as nkeys has it."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
            crc &= 0xFFFF
    return crc
