"""Addresses: which are public, and which belong to one network."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
IPV6_PREFIX = 64
"""One customer has at least this many bits: an address more costs them nothing."""


class AddressPolicy:
    """Which addresses the service may call: public ones, and those of ``networks``."""

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)

    def allows(self, address: Address) -> bool:
        """Private, loopback, link-local, multicast and reserved ones only if they are named."""
        inner = unwrapped(address)
        if any(inner in network for network in self._networks if network.version == inner.version):
            return True
        return inner.is_global and not inner.is_multicast


def unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for (mapped, 6to4, NAT64), else itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def network_of(address: str) -> str:
    """The network that an address counts for: itself, or its /64 for IPv6. No address: as it is."""
    try:
        found = unwrapped(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(ipaddress.IPv6Network((int(found), IPV6_PREFIX), strict=False))
