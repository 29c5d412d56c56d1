"""Images come from the public internet only: nothing inside the cluster is reached through the gateway."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.public_addresses import is_allowed_host, is_public

PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001:800::200e", "::ffff:8.8.8.8",
          "64:ff9b::808:808"]  # fmt: skip
REFUSED = [
    "10.0.0.1", "172.16.5.4", "192.168.1.1", "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3",
    "169.254.169.254",  # metadata of most clouds
    "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254",  # of others
    "100.64.0.1", "198.18.0.1", "192.88.99.1", "192.0.2.1", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "ff02::1", "2001:db8::1", "100::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:168.63.129.16",
    "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::1", "2002:a00:1::", "2001:0:a00:1::",
    "", "localhost", "127.1", "0x7f000001", "1.2.3",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_connected_to(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", REFUSED)
def test_no_other_address_is(address: str) -> None:
    assert not is_public(address)


@given(st.ip_addresses(v=4))
def test_an_address_inside_another_one_is_judged_as_itself(address: ipaddress.IPv4Address) -> None:
    assert is_public(f"::ffff:{address}") == is_public(str(address))
    assert is_public(f"64:ff9b::{address}") == is_public(str(address))


@given(st.ip_addresses())
def test_no_address_that_python_knows_as_special_is_public(address: ipaddress.IPv4Address) -> None:
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    if is_public(str(address)) and not mapped:
        assert address.is_global or address in ipaddress.ip_network("64:ff9b::/96")
        assert not (address.is_private or address.is_multicast or address.is_loopback or address.is_link_local)


def test_a_list_of_hosts_has_their_subdomains_and_no_others() -> None:
    domains = ("images.example.com", "cdn.example.org")
    assert is_allowed_host("IMAGES.example.com.", domains)
    assert is_allowed_host("a.b.cdn.example.org", domains)
    for host in ("example.com", "evilimages.example.com", "images.example.com.evil.org", "cdn.example.org-x.net"):
        assert not is_allowed_host(host, domains), host
    assert is_allowed_host("anything.example.net", ())
