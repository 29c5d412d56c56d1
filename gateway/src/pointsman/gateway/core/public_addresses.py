"""Which addresses the gateway connects to when a client gives it the address of an image.

A client must not reach through the gateway what it cannot reach itself: the cluster's Services and pods, the node, the
cloud's metadata service. Only addresses of the public internet are left. An address that carries another one inside
(IPv4-mapped, 6to4, Teredo, NAT64) is judged by both.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Final

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Beside what the ipaddress module knows, some of it in newer versions of Python only.
_REFUSED: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's wire server: metadata at a public address
        "100.64.0.0/10",  # shared by carriers; pods and metadata in some clouds
        "192.0.0.0/24",  # IETF protocols; metadata of Oracle's cloud
        "192.88.99.0/24",  # 6to4 relays, withdrawn
        "198.18.0.0/15",  # benchmarks
        "::/96",  # IPv4-compatible, withdrawn
        "64:ff9b:1::/48",  # NAT64 for local use
        "100::/64",  # discard
        "2001:2::/48",  # benchmarks
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fec0::/10",  # site-local, withdrawn
    )
)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether ``address`` (an IP address, with or without a zone) belongs to the public internet."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(map(_is_public, (found, *_inside(found))))


def _is_public(address: _Address) -> bool:
    special = (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
    )
    if special and not _carries_ipv4(address):  # such an address is special in itself, and judged by what it carries
        return False
    return not any(address.version == network.version and address in network for network in _REFUSED)


def _carries_ipv4(address: _Address) -> bool:
    return isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped is not None or address in _NAT64)


def _inside(address: _Address) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses that ``address`` carries."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        if address.sixtofour is not None:
            yield address.sixtofour
        if address.teredo is not None:
            yield from address.teredo
        if address in _NAT64:
            yield ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)


def is_allowed_host(host: str, domains: Iterable[str]) -> bool:
    """Whether ``host`` is one of ``domains`` or a subdomain of one; any host where ``domains`` is empty."""
    name = host.rstrip(".").lower()
    known = tuple(domains)
    return not known or any(name == domain or name.endswith(f".{domain}") for domain in known)
