"""What SIP said of each call: who called whom, when, how it was answered, who hung up, and the media lines of its SDP."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shunt.calls.sdp import SdpMedia
from shunt.cdr.record import Signalling
from shunt.events.bus import NOTE, SIP, Event

KINDS = (SIP, NOTE)
_MOST_CALLS = 200_000


@dataclass(slots=True)
class _Dialog:
    """One Call-ID. answered: whether its first INVITE had a 2xx; began, ended: Unix time."""

    began: float
    ended: float | None = None
    from_uri: str | None = None
    to_uri: str | None = None
    caller_tag: str | None = None
    code: int | None = None
    answered: bool = False
    hung_up: str | None = None
    media: tuple[SdpMedia, ...] = ()


class Found(NamedTuple):
    """A call that was looked for. began, ended: Unix time; ended: None while it rings or is up."""

    call_id: str
    began: float
    ended: float | None
    answered: bool
    signalling: Signalling


class Dialogs:
    """Subscriber of the bus, for events of KINDS. Beyond a number of calls the one that was quiet for longest is forgotten."""

    def __init__(self, most: int = _MOST_CALLS) -> None:
        """most: how many calls are kept."""
        self._most = most
        self._of: OrderedDict[str, _Dialog] = OrderedDict()

    def __call__(self, event: Event) -> None:
        """Take in one SIP message, or the end of a call's media."""
        if event.kind == NOTE:
            if event.what == "ended" and (over := self._find(event.call_id)) is not None and over.ended is None:
                over.ended = event.at
            return
        dialog = self._of.get(event.call_id)
        if dialog is None:
            dialog = self._of[event.call_id] = _Dialog(event.at)
            if len(self._of) > self._most:
                self._of.popitem(last=False)
        self._of.move_to_end(event.call_id)
        facts = event.facts
        if facts["lines"]:
            dialog.media = facts["lines"]
        if event.what == "INVITE" and dialog.caller_tag is None:
            dialog.caller_tag, dialog.from_uri, dialog.to_uri = facts["from_tag"], facts.get("from"), facts.get("to")
        elif event.what == "BYE":
            dialog.ended = event.at
            if dialog.hung_up is None and dialog.caller_tag is not None:
                dialog.hung_up = "caller" if facts["from_tag"] == dialog.caller_tag else "callee"
        elif event.what == "CANCEL":
            # A SIP server cancels branches that lost, too.
            if not dialog.answered and dialog.hung_up is None:
                dialog.hung_up = "caller"
        elif event.what.isdigit() and facts["cseq"] == "INVITE":
            self._response(dialog, int(event.what), event.at)

    @staticmethod
    def _response(dialog: _Dialog, code: int, at: float) -> None:
        if code < 200 or dialog.answered:
            return
        dialog.code = code
        if code < 300:
            # A CANCEL that came too late, or for another branch; or a branch that failed before.
            dialog.answered, dialog.hung_up, dialog.ended = True, None, None
        else:
            dialog.ended = at

    def search(self, text: str, since: float, until: float, over: bool | None) -> Iterator[Found]:
        """The calls whose From, To or Call-ID has this text (case does not matter), latest first.

        since, until: Unix time; a call fits that was there at any moment between. over: only calls that are over, or only those that are not.
        """
        wanted = text.casefold()
        for call_id, dialog in reversed(self._of.items()):
            if dialog.caller_tag is None or dialog.began > until or (dialog.ended is not None and dialog.ended < since):
                continue
            if over is not None and over == (dialog.ended is None):
                continue
            if any(wanted in word.casefold() for word in (dialog.from_uri or "", dialog.to_uri or "", call_id)):
                signalling = Signalling(dialog.from_uri, dialog.to_uri, dialog.code, dialog.hung_up)
                yield Found(call_id, dialog.began, dialog.ended, dialog.answered, signalling)

    def find(self, call_id: str) -> Found | None:
        """What SIP said of one call; None: its first INVITE was not seen."""
        dialog = self._find(call_id)
        if dialog is None or dialog.caller_tag is None:
            return None
        return Found(call_id, dialog.began, dialog.ended, dialog.answered, Signalling(dialog.from_uri, dialog.to_uri, dialog.code, dialog.hung_up))

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
