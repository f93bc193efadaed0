"""Network interfaces, as the kernel's netlink families route, netdev and ethtool describe them."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping

from shunt.doctor.facts import Feature, Link, Unknown, XdpMode
from shunt.doctor.host import netlink
from shunt.errors import plain

# linux/rtnetlink.h, linux/if_link.h, linux/if.h
_GET_LINK = 18
_NAME, _MTU, _LINK, _LINK_INFO, _RX_QUEUES, _LINK_NAMESPACE, _XDP = 3, 4, 5, 18, 32, 37, 43
_INFO_KIND = 1
_XDP_ATTACHED = 2
_UP, _LOOPBACK = 1, 8
_MODES: Mapping[int, XdpMode] = {1: "native", 2: "generic", 3: "hardware", 4: "several"}
# linux/netdev.h
_DEV_GET, _DEV_INDEX, _DEV_XDP_FEATURES = 1, 1, 3
# linux/ethtool_netlink.h, linux/ethtool.h
_FEATURES_GET, _CHANNELS_GET, _HEADER, _HEADER_INDEX = 11, 17, 1, 1
_HW, _ACTIVE, _NOCHANGE = 2, 4, 5
_RX_MAX, _COMBINED_MAX = 2, 5
_BITS, _BIT, _BIT_NAME, _BIT_VALUE = 3, 1, 2, 3
_SIOCETHTOOL, _GET_DRIVER = 0x8946, 3


def read(name: str, pin_dir: str) -> Link | None:
    """An interface of this network namespace; None: there is none such. pin_dir: where the softswitch pins its links. Raises OSError."""
    if len(name.encode()) > 15:
        return None
    try:
        body = netlink.ask(netlink.ROUTE, _GET_LINK, struct.pack("=BBHiII", socket.AF_UNSPEC, 0, 0, 0, 0, 0) + netlink.attribute(_NAME, name.encode() + b"\0"))
    except OSError as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    _, _, _, index, flags, _ = struct.unpack_from("=BBHiII", body)
    found = dict(netlink.attributes(body[16:]))
    info = dict(netlink.attributes(found.get(_LINK_INFO, b"")))
    kind = "loopback" if flags & _LOOPBACK else netlink.text(info.get(_INFO_KIND, b""))
    attached = _MODES.get(netlink.number(dict(netlink.attributes(found.get(_XDP, b""))).get(_XDP_ATTACHED, b"\0")))
    return Link(
        name=name,
        up=bool(flags & _UP),
        mtu=netlink.number(found[_MTU]),
        kind=kind,
        driver=_driver(name),
        rx_queues=netlink.number(found[_RX_QUEUES]),
        max_queues=_max_queues(index),
        offloads=_offloads(index),
        attached=attached,
        pinned=_pinned(pin_dir, index, attached),
        xdp_features=_xdp_features(index),
        below=_below(found) if kind.startswith("macv") else "",
    )


def _below(found: Mapping[int, bytes]) -> str:
    if _LINK not in found or _LINK_NAMESPACE in found:
        return ""
    try:
        return socket.if_indextoname(netlink.number(found[_LINK]))
    except OSError:
        return ""


def _driver(name: str) -> str | Unknown:
    answer = array.array("B", struct.pack("=I", _GET_DRIVER) + bytes(192))
    address, _ = answer.buffer_info()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP16x", name.encode(), address))
    except OSError as error:
        return Unknown(plain(error, "its driver"))
    return netlink.text(answer.tobytes()[4:36])


def _header(index: int) -> bytes:
    return netlink.nested(_HEADER, netlink.attribute(_HEADER_INDEX, struct.pack("=I", index)))


def _max_queues(index: int) -> int | None:
    try:
        found = dict(netlink.ask_family("ethtool", _CHANNELS_GET, _header(index)))
    except OSError:
        return None
    return max((netlink.number(found[kind]) for kind in (_RX_MAX, _COMBINED_MAX) if kind in found), default=None)


def _names(bitset: bytes, listed: bool) -> set[str]:
    """Names of the bits that are set; listed: only set ones are in it, as in a bitset without a mask."""
    bits = [dict(netlink.attributes(bit)) for bit in _all(dict(netlink.attributes(bitset)).get(_BITS, b""), _BIT)]
    return {netlink.text(bit[_BIT_NAME]) for bit in bits if _BIT_NAME in bit and (listed or _BIT_VALUE in bit)}


def _all(data: bytes, wanted: int) -> list[bytes]:
    """Values of all attributes of one type."""
    return [value for kind, value in netlink.attributes(data) if kind == wanted]


def _offloads(index: int) -> Mapping[str, Feature] | Unknown:
    try:
        found = dict(netlink.ask_family("ethtool", _FEATURES_GET, _header(index)))
    except OSError as error:
        return Unknown(plain(error, "the kernel does not report its offloads"))
    active, fixed = _names(found.get(_ACTIVE, b""), True), _names(found.get(_NOCHANGE, b""), True)
    changeable = _names(found.get(_HW, b""), False)
    return {name: Feature(name in active, name in fixed or name not in changeable) for name in active | fixed | changeable}


def _xdp_features(index: int) -> int | Unknown:
    try:
        found = dict(netlink.ask_family("netdev", _DEV_GET, netlink.attribute(_DEV_INDEX, struct.pack("=I", index))))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return Unknown("the kernel does not report what XDP can do on an interface (before Linux 6.3)")
        return Unknown(plain(error, "the kernel does not report what XDP can do on it"))
    return netlink.number(found[_DEV_XDP_FEATURES])


def _pinned(pin_dir: str, index: int, attached: XdpMode | None) -> bool | Unknown:
    if attached is None:
        return False
    try:
        names = os.listdir(pin_dir)
    except FileNotFoundError:
        return False
    except OSError as error:
        return Unknown(f"{plain(error, pin_dir)}; ask as root")
    return any(name in names for name in (f"link_{index}_native", f"link_{index}_generic"))
