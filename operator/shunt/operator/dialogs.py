"""What SIP said of each call: who called whom, how it was answered, who hung up, and the media lines of its SDP."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from shunt.calls.sdp import SdpMedia
from shunt.cdr.record import Signalling
from shunt.events.bus import SIP, Event

KINDS = (SIP,)
_MOST_CALLS = 200_000


@dataclass(slots=True)
class _Dialog:
    """One Call-ID. answered: whether its first INVITE had a 2xx."""

    from_uri: str | None = None
    to_uri: str | None = None
    caller_tag: str | None = None
    code: int | None = None
    answered: bool = False
    hung_up: str | None = None
    media: tuple[SdpMedia, ...] = ()


class Dialogs:
    """Subscriber of the bus, for events of KINDS. Beyond a number of calls the one that was quiet for longest is forgotten."""

    def __init__(self, most: int = _MOST_CALLS) -> None:
        """most: how many calls are kept."""
        self._most = most
        self._of: OrderedDict[str, _Dialog] = OrderedDict()

    def __call__(self, event: Event) -> None:
        """Take in one SIP message."""
        dialog = self._of.get(event.call_id)
        if dialog is None:
            dialog = self._of[event.call_id] = _Dialog()
            if len(self._of) > self._most:
                self._of.popitem(last=False)
        self._of.move_to_end(event.call_id)
        facts = event.facts
        if facts["lines"]:
            dialog.media = facts["lines"]
        if event.what == "INVITE" and dialog.caller_tag is None:
            dialog.caller_tag, dialog.from_uri, dialog.to_uri = facts["from_tag"], facts.get("from"), facts.get("to")
        elif event.what == "BYE":
            if dialog.hung_up is None and dialog.caller_tag is not None:
                dialog.hung_up = "caller" if facts["from_tag"] == dialog.caller_tag else "callee"
        elif event.what == "CANCEL":
            # A SIP server cancels branches that lost, too.
            if not dialog.answered and dialog.hung_up is None:
                dialog.hung_up = "caller"
        elif event.what.isdigit() and facts["cseq"] == "INVITE":
            self._response(dialog, int(event.what))

    @staticmethod
    def _response(dialog: _Dialog, code: int) -> None:
        if code < 200 or dialog.answered:
            return
        dialog.code = code
        if code < 300:
            # A CANCEL that came too late, or for another branch.
            dialog.answered, dialog.hung_up = True, None

    def _find(self, call_id: str) -> _Dialog | None:
        """The dialog of a Call-ID, as SIP or as the control channel has it (rtp_relay adds the branch)."""
        found = self._of.get(call_id)
        if found is not None:
            return found
        stem, dash, branch = call_id.rpartition("-")
        return self._of.get(stem) if dash and branch.isdigit() else None

    def signalling(self, call_id: str) -> Signalling:
        """What is known of a call."""
        dialog = self._find(call_id)
        return Signalling() if dialog is None else Signalling(dialog.from_uri, dialog.to_uri, dialog.code, dialog.hung_up)

    def sdp_media(self, call_id: str, index: int | None) -> SdpMedia | None:
        """What the last SDP of a call said of a media line (the control channel's index counts from 1); None: no copy of it was seen."""
        dialog = self._find(call_id)
        place = (index or 1) - 1
        return dialog.media[place] if dialog is not None and 0 <= place < len(dialog.media) else None

    def __len__(self) -> int:
        """How many calls are kept."""
        return len(self._of)
