"""What copies of SIP messages (HEPv3) tell the agent: the end of a dialog, and where a party's messages come from."""

from __future__ import annotations

import logging
from collections import OrderedDict

from shunt.calls import reasons
from shunt.events.bus import SIP
from shunt.hep.listener import SipSighting
from shunt.hep.sip import SdpMedia
from shunt.offload import Offloader

log = logging.getLogger(__name__)

# A BYE that the relay's delete does not follow was refused or forged: the media goes on, so learn again.
BYE_GRACE = 10.0


# REGISTER, OPTIONS and the like are nobody's call.
_OF_A_CALL = frozenset({"INVITE", "ACK", "BYE", "CANCEL", "UPDATE", "PRACK", "INFO", "REFER"})
_MAX_CALLS = 50_000


class DialogWatch:
    """Takes entries out on BYE and CANCEL without waiting for the relay's delete, and vouches for SIP source addresses."""

    def __init__(self, offloader: Offloader) -> None:
        self.offloader = offloader
        self.book = offloader.book
        self.byes = 0
        self._media: OrderedDict[str, tuple[SdpMedia, ...]] = OrderedDict()

    def on_sighting(self, seen: SipSighting) -> None:
        """One SIP message that the SIP server received or sent."""
        if (seen.method or seen.cseq_method) in _OF_A_CALL:
            self._tell(seen)
        if seen.method in ("BYE", "CANCEL"):
            self.byes += 1
            for line in self.book.of_dialog(seen.call_id, seen.from_tag, seen.to_tag):
                if seen.method == "CANCEL" and line.established:
                    continue  # the SIP server cancels the branches that lost
                if line.suspended != reasons.BYE_SEEN:
                    line.resume_at = self.offloader.clock() + BYE_GRACE
                    self.offloader.spawn(self.offloader.suspend(line, reasons.BYE_SEEN))
        elif seen.method == "INVITE":
            self.book.called(seen.call_id, seen.from_tag, seen.source.addr, seen.destination.addr)
            self.book.sight(seen.call_id, seen.from_tag, seen.source.addr)
        elif seen.status is not None and seen.cseq_method == "INVITE" and seen.to_tag and seen.status < 300:
            self.book.sight(seen.call_id, seen.to_tag, seen.source.addr)
            if seen.status >= 200:
                for tag in (seen.from_tag, seen.to_tag):
                    for line in self.book.of_dialog(seen.call_id, tag, None):
                        line.established = True
        elif seen.status is not None and seen.status >= 300 and seen.cseq_method == "INVITE":
            # A refused re-INVITE leaves the media where it was: believe the old sources again at once.
            for line in self.book.of_dialog(seen.call_id, seen.from_tag, seen.to_tag):
                for leg in line.legs.values():
                    leg.rtp.lift_quarantine()
                    leg.rtcp.lift_quarantine()

    def _tell(self, seen: SipSighting) -> None:
        self.offloader.events.emit(
            SIP, seen.call_id, seen.method or str(seen.status), source=seen.source, destination=seen.destination, cseq=seen.cseq_method,
            from_tag=seen.from_tag, to_tag=seen.to_tag, sdp=seen.sdp, lines=seen.media,
        )
        if seen.media:
            self._media[seen.call_id] = seen.media
            self._media.move_to_end(seen.call_id)
            if len(self._media) > _MAX_CALLS:
                self._media.popitem(last=False)

    def sdp_media(self, call_id: str, index: int | None) -> SdpMedia | None:
        """What the last SDP of a call said of one media line (rtpproxy's index counts from 1); None where no copy was seen."""
        lines = self._media.get(call_id)
        if lines is None:
            stem, dash, branch = call_id.rpartition("-")
            lines = self._media.get(stem) if dash and branch.isdigit() else None
        place = (index or 1) - 1
        return lines[place] if lines is not None and 0 <= place < len(lines) else None
