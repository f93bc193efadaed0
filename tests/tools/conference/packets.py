"""From a media packet to what suppressing and rewriting need: frame number, first and last packet, layers.

Where a stream has no dependency descriptor, frame marking (RFC 9626) or the VP8 or VP9 payload descriptor tells the temporal
layer. They do not count frames as the descriptor does, so the reader counts them: by picture id where there is one, by RTP
timestamp where not. One reader for each stream, packets in the order in which they arrive.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tests.tools.conference import descriptor, payload, rtp
from tests.tools.conference.rtp import MediaError
from tests.tools.conference.sequence import Row, after

_M = 0xFFFF
_KNOWN = 64  # timestamps whose frame is remembered for late packets
_UNCERTAIN = 32  # frames put between two packets when what lies between cannot be counted: more than rewriting asks about


class Layers(enum.Enum):
    """Where a stream's layers are told."""

    DEPENDENCY_DESCRIPTOR = "dependency-descriptor"
    FRAME_MARKING = "frame-marking"
    VP8 = "vp8"
    VP9 = "vp9"


class MediaPacket(NamedTuple):
    """One packet as read; needed_by: bit n is set when decode target n (temporal layer n where no descriptor says more) needs it.

    switches: bit n: whoever can decode this frame can decode all of target n from here on; decodable: bit n: whoever gets
    target n can decode it. to_agent: it carries a template structure. empty: it has no payload, only padding (browsers probe with such packets).
    """

    header: rtp.Header
    frame: int
    start: bool
    end: bool
    needed_by: int
    switches: int
    decodable: int
    to_agent: bool
    empty: bool

    def changes(self, old: int, new: int) -> bool:
        """Whether a receiver may change its decode target with this packet: down with any frame, up where the stream allows it."""
        return self.start and (new < old or bool(self.switches >> new & self.decodable >> old & 1))

    def row(self, target: int) -> Row:
        """What rewriting asks, for receivers with this decode target."""
        return Row(self.header.sequence, self.frame, self.start, self.end, bool(self.needed_by >> target & 1), self.to_agent)


class Reader:
    """Reads the packets of one stream. extension_id: of the descriptor or frame marking element, from the SDP."""

    def __init__(self, layers: Layers, extension_id: int | None = None) -> None:
        if (extension_id is None) == (layers in (Layers.DEPENDENCY_DESCRIPTOR, Layers.FRAME_MARKING)):
            raise ValueError(f"{layers.value}: extension id {extension_id}")
        self._layers, self._id = layers, extension_id
        self.table = descriptor.LayerTable()
        self._frames: dict[int, int] = {}  # timestamp -> frame number
        self._sequence: int | None = None
        self._frame = 0
        self._ended = False
        self._picture: int | None = None

    def read(self, packet: bytes) -> MediaPacket:
        """Read one packet. Raises MediaError; the reader goes on with the next one."""
        header = rtp.parse_header(packet)
        body = packet[header.payload]
        if self._id is None:
            return self._from_payload(header, body)
        element = rtp.find_element(packet, header, self._id)
        if self._layers is Layers.FRAME_MARKING:
            if element is None:
                return self._whole(header, self._count(header, True, True, None), True, True, None, not body)
            mark = payload.parse_frame_mark(element)
            return self._whole(header, self._count(header, mark.start, mark.end, None), mark.start, mark.end, mark.temporal, not body, mark.base_sync, mark.independent)
        if element is None:  # of no frame: everybody gets it, and a gap beside it is not taken for a suppressed one
            return self._whole(header, self._frame, True, True, None, not body)
        mandatory = descriptor.parse_mandatory(element)
        if self._sequence is None or after(header.sequence, self._sequence) > 0:
            self._sequence, self._frame = header.sequence, mandatory.frame_number
        carries = descriptor.has_structure(element)
        if carries:
            found = descriptor.parse(element).structure
            if found is not None:
                self.table.see(found)
        layer = self.table.layer(mandatory.template_id)
        return MediaPacket(header, mandatory.frame_number, mandatory.start, mandatory.end, *layer, layer.needed_by, carries, not body)

    def _from_payload(self, header: rtp.Header, body: bytes) -> MediaPacket:
        if not body:
            return self._whole(header, self._count(header, True, True, None), True, True, None, True)
        sync = up = False
        if self._layers is Layers.VP8:
            vp8 = payload.parse_vp8(body)
            start, end, picture, temporal, sync, key = vp8.start, header.marker, vp8.picture_id, vp8.temporal, vp8.sync, vp8.key
        else:
            vp9 = payload.parse_vp9(body)
            # Layers in space are frames of their own there, of one picture: only the picture counts here.
            start, end, picture, temporal = vp9.start and not vp9.spatial, header.marker, vp9.picture_id, vp9.temporal
            up, key = vp9.switching, not vp9.predicted and not vp9.spatial
        return self._whole(header, self._count(header, start, end, picture), start, end, temporal or 0, False, sync, key, up)

    @staticmethod
    def _whole(header: rtp.Header, frame: int, start: bool, end: bool, temporal: int | None, empty: bool, sync: bool = False, key: bool = False, up: bool = False) -> MediaPacket:
        """A packet of this temporal layer; None: of no frame.

        Layers are nested there. sync: the frame depends on the base layer only, so from it on its layer can be decoded by
        everybody; what is above is not said. key: it depends on nothing. up: what is above depends on nothing above it from before.
        """
        if temporal is None:
            return MediaPacket(header, frame, start, end, descriptor.EVERYBODY, 0, 0, False, empty)
        needed_by = descriptor.EVERYBODY - (1 << temporal) + 1
        if key:
            return MediaPacket(header, frame, start, end, needed_by, descriptor.EVERYBODY, descriptor.EVERYBODY, False, empty)
        above = needed_by & ~(1 << temporal) if up else 0
        if sync and temporal:
            return MediaPacket(header, frame, start, end, needed_by, 1 << temporal | above, descriptor.EVERYBODY, False, empty)
        return MediaPacket(header, frame, start, end, needed_by, above, needed_by, False, empty)

    def _count(self, header: rtp.Header, start: bool, end: bool, picture: int | None) -> int:
        """The number of the packet's frame."""
        known = self._frames.get(header.timestamp)
        ahead = 1 if self._sequence is None else after(header.sequence, self._sequence)
        if known is None:
            if self._sequence is None:
                known = 0
            elif picture is not None and self._picture is not None:
                # 7 and 15 bits: half of the smaller range is far more than any reordering.
                step = (picture - self._picture + 64 & 127) - 64
                known = self._frame + step if ahead > 0 or step < 0 else self._frame - 1
            elif ahead > 0:
                known = self._frame + self._frames_on(ahead - 1, start)
            else:
                known = self._frame - 1  # a frame of which nothing else came: before the highest, whichever it is
            known &= _M
            self._frames[header.timestamp] = known
            if len(self._frames) > _KNOWN:
                del self._frames[next(iter(self._frames))]
        if ahead > 0:
            self._sequence, self._frame, self._ended = header.sequence, known, end
            if picture is not None:
                self._picture = picture
        return known

    def _frames_on(self, gap: int, start: bool) -> int:
        """How many frames further a packet with a new timestamp is, `gap` packets after the one before it."""
        edges = (not self._ended) + (not start)  # each lost something when it is not whole
        if gap == 0 or gap == edges:
            return 1
        return 2 if gap == 1 and edges == 0 else _UNCERTAIN
