"""The rows of the comparison: networks as operators have them. A new case is a row.

Each plays on a Field and returns what was sent and what arrived; it is played once with the relay alone and once with Shunt.
"""

from __future__ import annotations

import asyncio
from functools import partial

from tests.lab.load import ControlClient
from tests.lab.processes import RELAY_PORT
from tests.lab.topology import NAT_IP
from tests.networks.field import BEHIND_NAT, NOBODY, Call, Field, Place, Play, Row, Sent, udptl

ROWS: list[Row] = []


async def _talk(call: Call, seconds: float, *, caller: float = 0.02, callee: float = 0.02) -> list[Sent]:
    """Both parties talk for so long, each with a packet each so many seconds."""
    call.callee.talk(callee)
    call.caller.talk(caller)
    await asyncio.sleep(seconds)
    return await call.settle()


# -- parties that send seldom ------------------------------------------------------------------------------------------


async def plain(field: Field) -> list[Sent]:
    """Addresses as signalled, a packet each 20 ms."""
    call = field.call(field.phone("caller"), field.phone("callee"))
    await call.set_up()
    return await _talk(call, 3.0)


async def offloaded(field: Field) -> list[Sent]:
    """The same, and Shunt offloads both directions."""
    call = field.call(field.phone("caller"), field.phone("callee"))
    await call.set_up()
    assert field.lab.advertised in (None, call.caller.relay and call.caller.relay[0]), call.caller.relay
    call.callee.talk()
    call.caller.talk()
    await asyncio.sleep(3.0)
    states = await field.states(call)
    assert set(states) <= {"offloaded"}, states
    return await call.settle()


async def seldom(field: Field, every: float, natted: bool, fax: bool = False) -> list[Sent]:
    """A caller at an address that its SDP does not name sends seldom. natted: its SDP names an address that nobody has, else a neighbour's."""
    caller = field.phone("natcaller" if natted else "caller", media=udptl if fax else None)
    call = field.call(caller, field.phone("callee", media=udptl if fax else None))
    address: Place = (NOBODY, caller.port) if natted else ("198.18.1.77", caller.port)
    await call.set_up(caller=address)
    return await _talk(call, max(5.0, 6 * every), caller=every)


def _until_second(every: float) -> int:
    """A relay gets the second packet of a source that nobody names, and does not know before where the party is: a single packet proves nothing."""
    return 5 + round(every / 0.02)


ROWS.append(Row("addresses as signalled", plain))
ROWS.append(Row("addresses as signalled, relay behind 1:1 NAT", offloaded, relays=(BEHIND_NAT,)))
for _every in (0.12, 0.4, 1.0):
    ROWS.append(Row(f"media address that nobody names, a packet each {_every} s", partial(seldom, every=_every, natted=False), more=_until_second(_every)))
ROWS.append(Row("private address in SDP, text each 3 s", partial(seldom, every=3.0, natted=True), more=_until_second(3.0)))
ROWS.append(Row("private address in SDP, UDPTL each 0.4 s", partial(seldom, every=0.4, natted=True, fax=True), more=_until_second(0.4)))


async def behind_one_address(field: Field, every: float) -> list[Sent]:
    """Two phones behind one public address, both in calls, with copies of SIP. The second one sends seldom."""
    trunk = [field.phone("callee") for _ in range(2)]
    calls = [field.call(field.phone("natcaller"), callee) for callee in trunk]
    for call in calls:
        field.invite(call, NAT_IP)
        await call.set_up(caller=(NOBODY, call.caller.port))
    for call in calls:
        call.callee.talk()
    calls[0].caller.talk()
    calls[1].caller.talk(every)
    await asyncio.sleep(6.0)
    await calls[0].settle()
    return await calls[1].settle()


for _every in (0.32, 0.4, 1.0):
    ROWS.append(Row(f"two phones behind one address, one sends each {_every} s", partial(behind_one_address, every=_every)))


# -- packets that the data plane does not see ---------------------------------------------------------------------------


async def beside_the_relay(field: Field, silent: float) -> list[Sent]:
    """A PBX on the relay's own host; its SDP names an address that it does not use. silent: seconds until it sends."""
    call = field.call(field.phone("caller"), field.phone("edge", "198.18.0.50"))
    await call.set_up(callee=("198.18.2.99", call.callee.port))
    call.caller.talk()
    await asyncio.sleep(silent)
    for phone in (call.caller, call.callee):
        phone.forget()
    call.callee.talk()
    await asyncio.sleep(4.0)
    return await call.settle()


ROWS.append(Row("PBX on the relay's host behind another address", partial(beside_the_relay, silent=0.0)))


# -- sources that move --------------------------------------------------------------------------------------------------


async def ports_that_change(field: Field, packets: int) -> list[Sent]:
    """The caller's source port changes after so many packets, as behind a load balancer; its address is named."""
    call = field.call(field.phone("caller"), field.phone("callee"))
    await call.set_up()
    call.callee.talk()

    def move() -> None:
        if call.caller.sent and len(call.caller.sent) % packets == 0:
            call.caller.move()

    call.caller.talk(before=move)
    await asyncio.sleep(4.0)
    return (await call.settle())[:1]


for _packets in (1, 10, 50):
    # The first change is followed as a NAT rebinding, after three packets; the next one sends the stream to the relay.
    ROWS.append(Row(f"source port changes each {_packets} packets", partial(ports_that_change, packets=_packets), more=8))


async def far_side_moves(field: Field, shared: bool) -> list[Sent]:
    """The callee goes on from another port with another SSRC, without a word of signalling. shared: another call comes from its address."""
    call = field.call(field.phone("caller"), field.phone("callee"))
    await call.set_up()
    if shared:
        other = field.call(field.phone("caller"), field.phone("callee"))
        await other.set_up()
    call.callee.talk()
    call.caller.talk()
    await asyncio.sleep(2.5)
    call.callee.move(anew=True)
    await asyncio.sleep(3.0)
    return await call.settle()


ROWS.append(Row("far side moves to another port and SSRC", partial(far_side_moves, shared=False)))
ROWS.append(Row("far side moves, its address has several calls", partial(far_side_moves, shared=True)))


# -- offers -------------------------------------------------------------------------------------------------------------


async def offer_without_answer(field: Field, by: str, address: str, natted: bool) -> list[Sent]:
    """A re-INVITE with another port, and perhaps another address, that is refused or never answered; without copies of SIP."""
    call = field.call(field.phone("natcaller" if natted else "caller"), field.phone("callee"))
    await call.set_up(caller=(NOBODY, call.caller.port) if natted else None)
    call.callee.talk()
    call.caller.talk()
    await asyncio.sleep(1.5)
    before = {phone: (phone.relay, phone.port) for phone in (call.caller, call.callee)}
    phone = call.phones[by]
    await call.offer(by=by, address=(address or phone.ip, phone.port + 2))
    for phone, (relay, _) in before.items():
        phone.relay = relay
    await asyncio.sleep(3.0)
    return await call.settle()


for _by, _address, _natted in (("A", "", False), ("B", "", False), ("A", "198.18.1.99", False), ("A", "", True)):
    _what = f"offer of {'caller' if _by == 'A' else 'callee'}{' with another address' if _address else ''}{' behind NAT' if _natted else ''} without an answer"
    ROWS.append(Row(_what, partial(offer_without_answer, by=_by, address=_address, natted=_natted)))


async def there_and_back(field: Field) -> list[Sent]:
    """The callee's media moves to another address by re-INVITE and back, as music on hold does; the caller is behind NAT."""
    call = field.call(field.phone("natcaller"), field.phone("callee"))
    home = (call.callee.ip, call.callee.port)
    away = field.phone("callee", "198.18.2.77")
    await call.set_up(caller=(NOBODY, call.caller.port))
    call.callee.talk()
    call.caller.talk()
    await asyncio.sleep(1.5)
    for place in ((away.ip, away.port), home):
        await call.offer(by="B", address=place)
        await call.answer(by="A", address=(NOBODY, call.caller.port))
        if place != home:
            await call.callee.hush()
            away.relay = call.callee.relay
            away.talk()
            await asyncio.sleep(1.5)
            await away.hush()
            call.callee.relay = away.relay
    for phone in (call.caller, call.callee):
        phone.forget()
    call.callee.talk()
    await asyncio.sleep(3.0)
    return await call.settle()


ROWS.append(Row("media moves away and back by re-INVITE, caller behind NAT", there_and_back))


def past_the_agent(every: float, stranger: str) -> Play:
    """The SIP server has sent a call's commands to the relay itself, as it does while the agent is away. The agent is back and knows nothing of the call.
    stranger: an address that the agent has not seen in a call."""

    async def play(field: Field) -> list[Sent]:
        usual, field.client = field.client, ControlClient.to(field.topology, port=RELAY_PORT)
        try:
            call = field.call(field.phone("caller", stranger), field.phone("callee"))
            await call.set_up()
        finally:
            field.client.close()
            field.client = usual
        return await _talk(call, max(2.0, 8 * every), caller=every)

    return play


ROWS += [
    Row(f"a call past the agent, a packet each {every * 1000:.0f} ms", past_the_agent(every, f"198.18.1.{number}"), relays=("rtpproxy",))
    for number, every in enumerate((0.02, 0.12, 0.2, 0.4, 1.0), 70)
]
