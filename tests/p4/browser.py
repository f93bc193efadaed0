"""The pictures that Chromium sent (tests/vectors/conference/chromium_av1.txt): AV1 in three temporal layers, told by dependency descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.tools.conference import descriptor, rtp
from tests.tools.conference.sequence import Row

CHROMIUM = Path(__file__).resolve().parents[1] / "vectors" / "conference" / "chromium_av1.txt"
EXTENSION = 12  # the id of the header extension with the descriptor
PATTERN = (0, 2, 1, 2)  # layers of its frames, from a key frame on
KEYS = (0, 237)  # packets with a template structure; at the second the ids move, and the pattern by two


@dataclass(frozen=True)
class Packet:
    """A packet of the browser's, with 20 bytes behind its header; key: the number of the last frame that depends on none."""

    payload: bytes
    row: Row
    key: int

    @property
    def layer(self) -> int:
        return PATTERN[(self.row.frame - self.key) % 4]

    def sent_as(self, ssrc: int, shift: int = 0) -> bytes:
        """The packet under another SSRC, and with another sequence number by `shift`."""
        number = (self.row.sequence + shift) & 0xFFFF
        return self.payload[:2] + number.to_bytes(2, "big") + self.payload[4:8] + ssrc.to_bytes(4, "big") + self.payload[12:]


def captured() -> list[Packet]:
    found, key = [], 0
    for line in CHROMIUM.read_text().splitlines():
        if not line.startswith("#"):
            header = bytes.fromhex(line.split()[1])
            element = rtp.find_element(header, rtp.parse_header(header), EXTENSION)
            assert element is not None
            mandatory = descriptor.parse_mandatory(element)
            key = mandatory.frame_number if len(found) in KEYS else key
            found.append(Packet(header + bytes(20), Row(rtp.parse_header(header).sequence, mandatory.frame_number, mandatory.start, mandatory.end, True), key))
    return found


def consecutive(numbers: list[int]) -> bool:
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))
