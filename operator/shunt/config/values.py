"""The small values of the configuration as types: sockets, port ranges, networks, addresses."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import PlainSerializer, PlainValidator

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_PORTS = re.compile(r"([0-9]{1,5}) *- *([0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_INTERFACE = re.compile(r"[^\s/:]{1,15}")
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# sun_path holds 108 bytes with the final zero (unix(7)).
_MAX_UNIX_PATH = 107


class SocketAddress(NamedTuple):
    """A parsed socket: scheme with host and port (udp, tcp), or with a path (unix, cunix).

    `udp6:` and `tcp6:`, as OpenSIPS and rtpproxy write them, are read as udp and tcp.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> SocketAddress:
        """Read udp:ADDRESS:PORT, tcp:ADDRESS:PORT, unix:/PATH or cunix:/PATH. Raises ValueError."""
        scheme, sep, rest = text.partition(":")
        if not sep or scheme not in ("udp", "udp6", "tcp", "tcp6", "unix", "cunix"):
            raise ValueError(f"{text!r} is not udp:ADDRESS:PORT, tcp:ADDRESS:PORT, unix:/PATH or cunix:/PATH")
        if scheme in ("unix", "cunix"):
            return cls(scheme, path=_unix_path(rest))
        if scheme.endswith("6") and not rest.startswith("["):
            # OpenSIPS also writes udp6:ADDRESS:PORT without brackets.
            address, _, port = rest.rpartition(":")
            rest = f"[{address}]:{port}"
        host, port_number = _address_port(rest, f"{scheme}:ADDRESS:PORT")
        return cls(scheme.removesuffix("6"), host, port_number)

    @property
    def is_ip(self) -> bool:
        return self.path == ""

    def clashes(self, other: SocketAddress) -> bool:
        """Whether both cannot be bound at once: same transport and port, same or any address; or the same path."""
        if not self.is_ip or not other.is_ip:
            return self.path == other.path
        if (self.scheme, self.port) != (other.scheme, other.port):
            return False
        return addresses_overlap(self.host, other.host)

    def __str__(self) -> str:
        if not self.is_ip:
            return f"{self.scheme}:{self.path}"
        return f"{self.scheme}:{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class HostPort(NamedTuple):
    """A TCP address: host (an IP address, or a name where names are allowed) and port; or a unix socket's path."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class PortRange(NamedTuple):
    """UDP ports for media, first to last inclusive: RTP on even ports, RTCP on the odd one after it."""

    first: int
    last: int

    @property
    def last_used(self) -> int:
        """The last port on which media can arrive: with an even end, rtpproxy uses the odd port after it for RTCP."""
        return self.last | 1

    def overlaps(self, other: PortRange) -> bool:
        return self.first <= other.last_used and other.first <= self.last_used

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def addresses_overlap(one: str, other: str) -> bool:
    """Whether sockets bound to these two addresses would claim the same packets (:: also takes IPv4 on Linux)."""
    if one == other or "::" in (one, other):
        return True
    if "0.0.0.0" in (one, other):
        return ":" not in one and ":" not in other
    return False


def _unix_path(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"the socket's path {path!r} is not absolute")
    if len(path.encode()) > _MAX_UNIX_PATH:
        raise ValueError(f"the socket's path has {len(path.encode())} bytes; the kernel takes at most {_MAX_UNIX_PATH}")
    if "\0" in path:
        raise ValueError("the socket's path has a NUL byte")
    return path


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 65535:
        raise ValueError(f"port {text!r} is not in 1..65535")
    return int(text)


def _address_port(text: str, form: str, names: bool = False) -> tuple[str, int]:
    host, sep, port = text.rpartition(":")
    if not sep or not host:
        raise ValueError(f"{text!r} is not of the form {form}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise ValueError(f"{host!r} in brackets is not an IPv6 address")
    elif ":" in host:
        raise ValueError(f"an IPv6 address needs brackets: [{host}]:{port}")
    if names and _HOST_NAME.fullmatch(host) and not re.fullmatch(r"[0-9.]+", host):
        return host, _port(port)
    return str(parse_address(host)), _port(port)


def parse_address(text: str) -> IPAddress:
    """An IPv4 or IPv6 address, without a zone. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError(f"an IP address was expected, not {text!r} (is it in quotes?)")
    if "%" in text:
        raise ValueError(f"{text!r}: an address with a zone (%interface) is not supported")
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv4 or IPv6 address") from None


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} was expected, not {value!r}")
    return value


def _socket(*schemes: str) -> Any:
    def check(value: Any) -> str:
        parsed = SocketAddress.parse(_text(value, "a socket such as udp:127.0.0.1:22221"))
        if parsed.scheme not in schemes:
            raise ValueError(f"{value!r}: {parsed.scheme} is not possible here, only {', '.join(schemes)}")
        return str(parsed)

    return PlainValidator(check)


def _host_port(names: bool, unix: bool) -> Any:
    def check(value: Any) -> str:
        text = _text(value, "HOST:PORT")
        if unix and text.startswith("unix:"):
            return f"unix:{_unix_path(text.removeprefix('unix:'))}"
        host, port = _address_port(text, ("HOST:PORT" if names else "ADDRESS:PORT") + (" or unix:/PATH" if unix else ""), names)
        return str(HostPort(host, port))

    return PlainValidator(check)


def host_port(text: str) -> HostPort:
    """Take ADDRESS:PORT, NAME:PORT or unix:/PATH apart; port 0 leaves the choice to the kernel. Raises ValueError."""
    if text.startswith("unix:"):
        return HostPort(path=_unix_path(text.removeprefix("unix:")))
    host, _, port = text.rpartition(":")
    if port == "0":
        return HostPort(_address_port(f"{host}:1", "HOST:PORT", names=True)[0], 0)
    return HostPort(*_address_port(text, "HOST:PORT", names=True))


def parse_ports(value: Any) -> PortRange:
    """Read "35000-65000": even start, both in 1024..65535. Raises ValueError."""
    if isinstance(value, PortRange):
        return value
    match = _PORTS.fullmatch(_text(value, 'a port range such as "35000-65000"'))
    if match is None:
        raise ValueError(f'{value!r} is not a port range such as "35000-65000"')
    first, last = int(match[1]), int(match[2])
    if not 1024 <= first <= 65535 or not 1024 <= last <= 65535:
        raise ValueError(f"{value!r}: media ports are in 1024..65535")
    if first % 2:
        raise ValueError(f"{value!r} starts at an odd port: RTP uses even ports, RTCP the odd one after it (RFC 3550 section 11)")
    if last <= first:
        raise ValueError(f"{value!r} ends before it holds one pair of ports")
    return PortRange(first, last)


def _network(value: Any) -> IPNetwork:
    if isinstance(value, (ipaddress.IPv4Network, ipaddress.IPv6Network)):
        return value
    text = _text(value, 'a network such as "127.0.0.0/8"')
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a network such as 127.0.0.0/8: {str(error).removeprefix(text).strip()}") from None


def _address(value: Any) -> IPAddress:
    return value if isinstance(value, (ipaddress.IPv4Address, ipaddress.IPv6Address)) else parse_address(value)


def _media_address(value: Any) -> IPAddress:
    address = _address(value)
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"{str(address)!r} cannot receive media: give the relay's own address, as in the SDP")
    return address


def _matching(pattern: re.Pattern[str], what: str) -> PlainValidator:
    def check(value: Any) -> str:
        text = _text(value, what)
        if not pattern.fullmatch(text):
            raise ValueError(f"{value!r} is not {what}")
        return text

    return PlainValidator(check)


def _absolute_path(value: Any) -> str:
    path = _text(value, "a path")
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{path!r} is not an absolute path")
    return path


def _sound(value: Any) -> str:
    text = _text(value, "a tone such as tone:880, or a path")
    kind, colon, pitch = text.partition(":")
    if colon and kind == "tone":
        if pitch.isascii() and pitch.isdecimal() and 50 <= int(pitch) <= 4000:
            return text
        raise ValueError(f"{text!r}: a tone has 50 to 4000 Hz")
    return _absolute_path(text)


def _owner(value: Any) -> str:
    text = _text(value, "an owner such as unix")
    kind, colon, name = text.partition(":")
    if (not colon and kind in ("unix", "tcp", "tls")) or (kind in ("user", "certificate") and name):
        return text
    raise ValueError(f"{text!r} is none of unix, tcp, tls, user:NAME, certificate:NAME")


def _redis_url(value: Any) -> str:
    text = _text(value, "a URL")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if parts.scheme == "unix":
        if not parts.path.startswith("/"):
            raise ValueError(f"{text!r} has no path: unix:///PATH")
    elif parts.scheme not in ("redis", "rediss") or not parts.hostname or port == 0:
        raise ValueError(f"{text!r} is not redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH")
    if parts.password is not None:
        raise ValueError("put the password into redis_password_file, which other users cannot read")
    return text


Name = Annotated[str, _matching(_NAME, "a name of 1 to 63 letters, digits, '.', '_' or '-'")]
Interface = Annotated[str, _matching(_INTERFACE, "the name of a network interface")]
AbsolutePath = Annotated[str, PlainValidator(_absolute_path)]
Sound = Annotated[str, PlainValidator(_sound)]
ControlSocket = Annotated[str, _socket("udp", "tcp", "unix", "cunix")]
NgSocket = Annotated[str, _socket("udp", "tcp")]
HepSocket = Annotated[str, _socket("udp", "tcp")]
UdpSocket = Annotated[str, _socket("udp")]
NotifySocket = Annotated[str, _socket("tcp", "unix")]
ServerAddress = Annotated[str, _host_port(names=False, unix=False)]
MixerSocket = Annotated[str, _socket("tcp", "unix")]
ServerListen = Annotated[str, _host_port(names=False, unix=True)]
Owner = Annotated[str, PlainValidator(_owner)]
ApiListen = Annotated[str, _host_port(names=False, unix=True)]
Target = Annotated[str, _host_port(names=True, unix=True)]
RedisUrl = Annotated[str, PlainValidator(_redis_url)]
Ports = Annotated[PortRange, PlainValidator(parse_ports), PlainSerializer(str, return_type=str)]
Network = Annotated[IPNetwork, PlainValidator(_network), PlainSerializer(str, return_type=str)]
Address = Annotated[IPAddress, PlainValidator(_address), PlainSerializer(str, return_type=str)]
MediaAddress = Annotated[IPAddress, PlainValidator(_media_address), PlainSerializer(str, return_type=str)]
