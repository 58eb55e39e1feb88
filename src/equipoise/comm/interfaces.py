"""The network interface that gloo shall use: the one from which the first host is reached.

Left alone, gloo takes the address that this host's own name has, which is often one that no other host can reach.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct

_ADDRESS_OF = 0x8915  # SIOCGIFADDR


def address_towards(host: str) -> str:
    """This host's own address on the way to another one; empty if there is no way."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
    return ""


def interfaces() -> dict[str, str]:
    """The IPv4 address of each interface that has one."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name[:15].encode())
                found[name] = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _ADDRESS_OF, request)[20:24])
    return found


def use_interface_to(host: str) -> None:
    """Let gloo use the interface from which a host is reached, unless the user has chosen one."""
    own = address_towards(host)
    for name, address in interfaces().items():
        if own and address == own:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def use_interface_of_launcher() -> None:
    """The same for processes of several hosts, which a launcher told where the first one is."""
    first = os.environ.get("MASTER_ADDR", "")
    several = os.environ.get("WORLD_SIZE") != os.environ.get("LOCAL_WORLD_SIZE")
    if first and several and not address_towards(first).startswith("127."):
        use_interface_to(first)
