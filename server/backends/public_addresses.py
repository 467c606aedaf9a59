"""Which addresses are on the public internet.

The blocks are those of IANA's special-purpose registries (IPv4: RFC 6890 and later, IPv6: likewise), for any purpose,
and metadata services of clouds that sit on public addresses. Python's `ipaddress` has them too, but which of them
depends on its patch release; so both are asked.
"""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
SPECIAL = [
    ipaddress.ip_network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's WireServer
        "169.254.0.0/16",  # link-local, with the metadata services of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments, with Oracle's metadata service
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "::/96",  # unspecified, loopback, IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64 of a site
        "100::/64",  # discard
        "100:0:0:1::/64",  # dummy
        "2001::/23",  # protocol assignments: Teredo, ORCHID, AMT, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fc00::/7",  # unique local
        "fe80::/10",  # link-local
        "fec0::/10",  # site-local
        "ff00::/8",  # multicast
    )
]


def is_public(address: Address) -> bool:
    """Return whether an address may be that of a server on the internet. Addresses that contain another one (mapped,
    6to4, NAT64) are not public."""
    return address.is_global and not any(address in block for block in SPECIAL)
