"""The gateway's own program, which fetches images from 127.0.0.1 too: the tests' image servers listen there.

No setting does this. All other addresses of the loopback network, and everything else that is not public, stay refused.
"""

from pointsman.gateway.__main__ import main
from pointsman.gateway.core.public_addresses import is_public


def is_allowed(address: str) -> bool:
    """Public addresses, and the tests' servers."""
    return address == "127.0.0.1" or is_public(address)


if __name__ == "__main__":
    main(is_allowed=is_allowed)
