"""Credentials that stand in URLs: no log, Event, condition or error may show them."""

import re
from typing import Final

_USER_AND_PASSWORD: Final = re.compile(
    r"""(?<=://)(?:
        [^\s"'<>/?#:@]*:(?!\d*/)(?:(?!://)[^\s"'<>])*@   # user:password@, though nobody encoded a slash in the password
        | (?:(?!://)[^\s"'<>/?#])*@                      # token@; an @ after the first slash is a path's, as in oci://
    )""",
    re.VERBOSE,
)
MASK: Final = "***@"


def mask_credentials(text: str) -> str:
    """``text`` with ``***`` in place of user and password in each URL: ``nats://u:p@host`` becomes ``nats://***@host``.

    A URL without credentials, and text without a URL, come back unchanged. Masking twice changes nothing more.
    """
    return _USER_AND_PASSWORD.sub(MASK, text) if "://" in text else text
