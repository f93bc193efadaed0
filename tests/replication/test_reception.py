"""How a replicated stream was received: losses, order and jitter as RFC 3550 counts them, for each stream by itself."""

from __future__ import annotations

import time

import pytest

from tests.replication.conftest import Bridge, Sender, rtp
from tests.softswitch.replication import Action, StreamKey

pytestmark = pytest.mark.netns

TREE, NUMBER = 5, 7
_GAP_S = 0.002


def streams(bridge: Bridge, *ssrcs: int) -> list[tuple[Sender, StreamKey]]:
    """Senders of one conference with one receiver."""
    participant = bridge.participant(1, NUMBER)
    bridge.replication.insert_tree(TREE, [(participant.rid, None)])
    made = [bridge.sender(ssrc) for ssrc in ssrcs]
    for _, key in made:
        bridge.replication.insert_stream(key, Action(TREE, 0, 0, 0, NUMBER))
    return made


def send(sender: Sender, *sequence: int) -> None:
    for number in sequence:
        sender.socket.sendto(rtp(number, sender.ssrc), (str(sender.relay.ip), sender.relay.port))
        time.sleep(_GAP_S)
    sender.bridge.settled()


def test_losses_order_and_repeats_are_counted(bridge: Bridge) -> None:
    (sender, key), (other, beside) = streams(bridge, 0x11, 0x22)
    send(sender, *range(65_500, 65_536), *range(65_536, 65_560))  # the sixteen bits begin anew
    whole = bridge.replication.reception(key)
    assert (whole.packets, whole.lost, whole.reordered, whole.duplicates) == (60, 0, 0, 0)
    assert whole.bytes == 60 * 200
    send(sender, 65_563, 65_562, 65_562, 65_570)  # 60, 61 and 64 to 69 are missing, 62 is late, and comes twice
    seen = bridge.replication.reception(key)
    # A repeated packet stands in for a lost one (RFC 3550 A.3).
    assert (seen.packets, seen.lost, seen.reordered, seen.duplicates) == (64, 7, 1, 1)
    assert bridge.replication.reception(beside).packets == 0 and bridge.replication.reception(beside).lost == 0
    send(other, 1, 2)
    assert bridge.replication.reception(beside).packets == 2 and bridge.replication.reception(key).packets == 64


def test_a_stream_that_begins_anew_hides_no_loss(bridge: Bridge) -> None:
    ((sender, key),) = streams(bridge, 0x11)
    send(sender, 10, 11, 14, 40_000, 40_001, 40_002)
    seen = bridge.replication.reception(key)
    assert (seen.packets, seen.lost) == (6, 2)


def test_jitter_is_measured_on_real_arrivals(bridge: Bridge) -> None:
    """Payload type 96 is taken to count 8000 a second: timestamps step by as many, and packets come one after the other, far less than a second apart."""
    ((sender, key),) = streams(bridge, 0x11)
    send(sender, *range(0, 2000, 50))
    assert 500_000 < (bridge.replication.reception(key).jitter_us or 0) < 1_000_000


def test_counting_starts_again_with_a_reset_and_a_new_row(bridge: Bridge) -> None:
    ((sender, key),) = streams(bridge, 0x11)
    send(sender, 1, 5)
    assert bridge.replication.reception(key).lost == 3
    bridge.replication.reset_stream(key)
    assert bridge.replication.reception(key).packets == 0
    send(sender, 9, 10, 12)
    assert (bridge.replication.reception(key).packets, bridge.replication.reception(key).lost) == (3, 1)
    bridge.replication.delete_stream(key)
    with pytest.raises(KeyError):
        bridge.replication.reception(key)
    bridge.replication.insert_stream(key, Action(TREE, 0, 0, 0, NUMBER))
    assert bridge.replication.reception(key).packets == 0
