"""A relay that only answers: it hands out ports of many addresses at once and forgets them. For more calls than a relay has ports.

Run: python -m bench.stand_in PORT ADDRESS FIRST LAST. ADDRESS is the first of as many neighbouring IPv4 addresses as are needed.
"""

from __future__ import annotations

import ipaddress
import socket
import sys

PER_CALL = 4


def endpoints(number: int, first_address: int, first: int, last: int) -> tuple[str, int, int]:
    """Relay address and the ports that callee and caller of call number are told."""
    per_address = (last - first + 1) // PER_CALL
    port = first + number % per_address * PER_CALL
    return str(ipaddress.IPv4Address(first_address + number // per_address)), port, port + 2


def addresses(calls: int, first: int, last: int) -> int:
    """How many relay addresses so many calls need."""
    return -(-calls // ((last - first + 1) // PER_CALL))


def serve(port: int, address: str, first: int, last: int) -> None:
    """Answer commands until killed."""
    base, numbers = int(ipaddress.IPv4Address(address)), {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        sock.bind(("127.0.0.1", port))
        while True:
            data, sender = sock.recvfrom(65536)
            words = data.split()
            cookie, verb = words[0], words[1][:1] if len(words) > 1 else b""
            if verb in (b"U", b"L"):
                number = numbers.setdefault(words[2], len(numbers))
                relay, to_callee, to_caller = endpoints(number, base, first, last)
                reply = f"{to_callee if verb == b'U' else to_caller} {relay}".encode()
            elif words[1:] == [b"V"]:
                reply = b"20040107"
            elif verb == b"V":
                reply = b"1"
            elif verb == b"I":
                reply = b"sessions created: %d\nactive sessions: %d\nactive streams: 0\npackets received: 0\npackets transmitted: 0" % (len(numbers), len(numbers))
            else:
                reply = b"0"
            sock.sendto(cookie + b" " + reply, sender)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
