"""What follows the end of a call: its record, its quality in the metrics, its report to Homer."""

from __future__ import annotations

from collections.abc import Callable

from shunt.calls.facts import Call
from shunt.calls.kinds import SIDES
from shunt.calls.sdp import SdpMedia
from shunt.cdr.record import iso_time, record
from shunt.events.bus import NOTE, Event
from shunt.export.homer import HomerExport
from shunt.metrics.instruments import Instruments
from shunt.operator.calls import went_past
from shunt.operator.dialogs import Dialogs
from shunt.operator.events import MISSING
from shunt.operator.records import Records

KINDS = (NOTE,)


def media_of(call: Call, dialogs: Dialogs, index: int | None) -> SdpMedia | None:
    """What SDP says of a media line: the agent's word, else the copies of SIP."""
    return call.sdp(index) or dialogs.sdp_media(call.call_id, index)


class Endings:
    """Subscriber of the bus, for events of KINDS."""

    def __init__(
        self, dialogs: Dialogs, instruments: Instruments, records: Records | None, homer: HomerExport | None, delay_ms: float, past: Callable[[float, float], str] = lambda begin, end: ""
    ) -> None:
        """delay_ms: the one-way delay that ratings assume; past: why packets went past the data plane between two times."""
        self._past = past
        self._dialogs, self._instruments, self._records, self._homer, self._delay_ms = dialogs, instruments, records, homer, delay_ms

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if self._records is not None and event.what == MISSING:
            self._records.missed(event.facts["reason"])
        if self._records is not None and event.what == "agent-started":
            self._records.began(event.epoch, iso_time(event.at))
        if event.what != "ended":
            return
        call: Call = event.facts["call"]
        call = went_past(call, self._past(call.created, event.at))
        entry = record(
            call,
            event.facts["reason"],
            event.at,
            lambda index: media_of(call, self._dialogs, index),
            self._delay_ms,
            sip=self._dialogs.signalling(call.call_id),
            epoch=event.epoch,
            seq=event.seq,
            number=event.facts["number"],
        )
        if self._records is not None:
            self._records.put(event.seq, entry)
        self._instruments.quality([media[side.value] for media in entry["media"] for side in SIDES if media["kind"] in (None, "audio")])
        if self._homer is not None:
            self._homer.call_ended(entry, event.at)
