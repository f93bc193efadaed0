"""Answers of the agent for a conference, as the admin API documents them."""

from __future__ import annotations

from typing import Any, cast

from shunt.admin.model import Codec, Conference, Participant

PCMU: Codec = {"payload_type": 0, "encoding": "PCMU", "clock_rate": 8000, "channels": None, "fmtp": None}
OPUS: Codec = {"payload_type": 111, "encoding": "opus", "clock_rate": 48000, "channels": 2, "fmtp": "minptime=10"}
VP8: Codec = {"payload_type": 96, "encoding": "VP8", "clock_rate": 90000, "channels": None, "fmtp": None}


def medium(name: str, port: int, *codecs: Codec, **more: Any) -> dict[str, Any]:
    stream = {"ssrc": 0x1000 + port, "payload_type": None, "packets": 7, "bits_per_s": 300, "targets_bits_per_s": [100, 200, 300], "repair": False, "conflicts_with": None}
    return {
        "medium": name,
        "address": f"203.0.113.10:{port}",
        "direction": "sendrecv",
        "latched": None,
        "contested": False,
        "transport": "RTP/AVP",
        "codecs": list(codecs),
        "layers": None,
        "rtcp_mux": False,
        "shows": None,
        "streams": [stream],
    } | more


def participant(name: str, *media: dict[str, Any], **more: Any) -> Participant:
    made = {
        "participant": name,
        "call": None,
        "joined_us": 1_795_522_088_000_000,
        "present": True,
        "silent_s": 0.25,
        "encrypted": False,
        "media": list(media),
        "ice": None,
        "signalling": None,
        "mixed": "auto",
        "gets_mix": False,
        "muted": False,
        "gets_tiles": False,
    }
    return cast(Participant, made | more)


def conference(*members: Participant, **more: Any) -> Conference:
    made = {
        "conference": "room",
        "participants": len(members),
        "design": "nra",
        "problem": None,
        "mixing": False,
        "mixer": None,
        "speaker": None,
        "announcements": False,
        "tiling": None,
        "unjoined": [],
        "started_us": 0,
        "members": list(members),
        "qualities": [],
        "subscriptions": [],
        "counters_age_s": None,
    }
    return cast(Conference, made | more)
