"""The rows of the comparison: networks as operators have them. A new case is a row.

Each plays on a Field and returns what was sent and what arrived; it is played once with the relay alone and once with Shunt.
"""

from __future__ import annotations

import asyncio
from tests.networks.field import Call, Field, Row, Sent

ROWS: list[Row] = []


async def _talk(call: Call, seconds: float, *, caller: float = 0.02, callee: float = 0.02) -> list[Sent]:
    """Both parties talk for so long, each with a packet each so many seconds."""
    call.callee.talk(callee)
    call.caller.talk(caller)
    await asyncio.sleep(seconds)
    return await call.settle()


async def plain(field: Field) -> list[Sent]:
    """Addresses as signalled, a packet each 20 ms."""
    call = field.call(field.phone("caller"), field.phone("callee"))
    await call.set_up()
    return await _talk(call, 3.0)


ROWS.append(Row("addresses as signalled", plain))
