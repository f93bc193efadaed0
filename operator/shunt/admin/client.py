"""The client: one method for each resource of the admin API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Self, cast

import aiohttp

from shunt.admin.connection import Connection, path_of
from shunt.admin.model import (
    Audit,
    Call,
    CallPage,
    Conference,
    ConferenceSummary,
    Decision,
    DrainStatus,
    Estimate,
    JoinMedium,
    Mixed,
    Participant,
    Quality,
    Status,
    Stop,
    TiledCodec,
    Tiling,
    Trace,
)
from shunt.admin.stream import EventStream, lines_of

DEFAULT_SOCKET = "/run/shunt/admin.sock"
# More than the agent itself waits for the data plane, so that its own words arrive.
_TIMEOUT_S = 8.0
_SILENCE_S = 40.0  # the agent sends something every 15 s


class AdminClient:
    """Asks one agent. An asynchronous context manager, for one event loop.

    Every method raises AgentUnreachable where nobody answers, and AgentError with the agent's own words where it refuses.
    """

    def __init__(self, socket: str = DEFAULT_SOCKET, timeout_s: float = _TIMEOUT_S) -> None:
        """socket: path of the agent's Unix socket; timeout_s: for each answer, streams apart."""
        self._connection = Connection(socket, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; streams end."""
        await self._connection.close()

    # -- snapshots ------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """The agent as a whole."""
        return cast(Status, await self._connection.ask("GET", path_of("status")))

    async def metrics(self) -> str:
        """The agent's metrics in the OpenMetrics text format."""
        return await self._connection.text("/metrics")

    async def calls(self, *, state: str | None = None, reason: str | None = None, match: str | None = None, limit: int = 100, after: int | None = None, fresh: bool = False) -> CallPage:
        """At most `limit` (1 to 1,000) calls, the oldest first.

        state and reason: of one and the same stream; match: part of the Call-ID; after: `next` of the page before; fresh: counters are read from the
        data plane now, instead of those at hand.
        """
        query = {"state": state, "reason": reason, "match": match, "limit": limit, "after": after, "counters": "fresh" if fresh else None}
        return cast(CallPage, await self._connection.ask("GET", path_of("calls"), query))

    async def all_calls(self, *, state: str | None = None, reason: str | None = None, match: str | None = None) -> AsyncIterator[Call]:
        """All calls that fit, page by page."""
        after: int | None = None
        while True:
            page = await self.calls(state=state, reason=reason, match=match, limit=1000, after=after)
            for call in page["calls"]:
                yield call
            after = page["next"]
            if after is None:
                return

    async def call(self, call_id: str, *, fresh: bool = True) -> Call:
        """One call. fresh: counters are read from the data plane now; where that fails, counters_error says why."""
        return cast(Call, await self._connection.ask("GET", path_of("calls", call_id), {"counters": "fresh" if fresh else "last"}))

    async def trace(self, source: str, destination: str) -> Trace:
        """Where the data plane would send a packet from source to destination (ADDRESS:PORT), and whose it is."""
        return cast(Trace, await self._connection.ask("GET", path_of("trace"), {"source": source, "destination": destination}))

    # -- commands -------------------------------------------------------------------------------------

    async def release(self, call_id: str) -> None:
        """Remove a call's entries and end its sessions on the relay."""
        await self._connection.ask("POST", path_of("calls", call_id, "release"))

    async def drain_status(self) -> DrainStatus:
        """Whether the agent drains, and what is still there."""
        return cast(DrainStatus, await self._connection.ask("GET", path_of("drain")))

    async def drain(self, stop: Stop, *, group: bool = False) -> DrainStatus:
        """Begin draining until no entry is left (offloads), or no call either (calls). group: a take-over does not end it."""
        return cast(DrainStatus, await self._connection.ask("POST", path_of("drain"), body={"stop": stop, "group": group}))

    async def end_drain(self) -> DrainStatus:
        """End draining."""
        return cast(DrainStatus, await self._connection.ask("DELETE", path_of("drain")))

    async def audit(self) -> Audit:
        """Compare the relay table with the plan now."""
        return cast(Audit, await self._connection.ask("POST", path_of("audit")))

    async def log_filter(self) -> str:
        """What the agent's log has."""
        return str((await self._connection.ask("GET", path_of("log")))["filter"])

    async def set_log_filter(self, value: str) -> str:
        """Set what the log has until the next start, as "info,shunt_agent=debug"."""
        return str((await self._connection.ask("PUT", path_of("log"), body={"filter": value}))["filter"])

    # -- events ---------------------------------------------------------------------------------------

    def events(self, from_seq: int | Literal["next"] | None = None, *, follow: bool = True) -> EventStream:
        """Events from a sequence number on ("next": only those to come; None: all that are kept), and gaps among them.

        With follow the stream reconnects for ever and resumes after the last event given; without, it ends after those that are kept now.
        """
        return EventStream(self._connection, from_seq, follow)

    async def capture(self, *, call: str | None = None, match: str | None = None, address: str | None = None, port: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """Capture calls while the iteration lasts: the calls that fit, and their SIP, as they change. The softswitch's socket of the first line sends the packets."""
        query = {"call": call, "match": match, "address": address, "port": port}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=_SILENCE_S)
        async with self._connection.open("GET", path_of("capture"), query, timeout=timeout) as response:
            async for line in lines_of(response):
                yield line

    # -- conferences ----------------------------------------------------------------------------------

    async def conferences(self) -> list[ConferenceSummary]:
        """All conferences."""
        return cast(list[ConferenceSummary], (await self._connection.ask("GET", path_of("conferences")))["conferences"])

    async def create_conference(self, name: str) -> ConferenceSummary:
        """Create a conference."""
        return cast(ConferenceSummary, await self._connection.ask("POST", path_of("conferences"), body={"conference": name}))

    async def conference(self, name: str) -> Conference:
        """A conference with its participants, and what each gets of each."""
        return cast(Conference, await self._connection.ask("GET", path_of("conferences", name)))

    async def end_conference(self, name: str) -> None:
        """End a conference."""
        await self._connection.ask("DELETE", path_of("conferences", name))

    async def join(
        self,
        conference: str,
        participant: str,
        media: Sequence[JoinMedium],
        *,
        signalled: Sequence[str] = (),
        ice: bool = False,
        call: str | None = None,
        signalling: Any = None,
        mixed: Mixed = "auto",
    ) -> Participant:
        """Let a participant in; the answer says where it is to send.

        signalled: addresses that are latched at once; call: the SIP call's Call-ID; signalling: JSON that is kept with the participant.
        """
        body = {"participant": participant, "media": list(media), "signalled": list(signalled), "ice": ice, "call": call, "signalling": signalling, "mixed": mixed}
        return cast(Participant, await self._connection.ask("POST", path_of("conferences", conference, "participants"), body=body))

    async def update_participant(
        self,
        conference: str,
        participant: str,
        *,
        media: Sequence[JoinMedium] | None = None,
        signalled: Sequence[str] | None = None,
        ice_restart: bool = False,
        signalling: Any = None,
        mixed: Mixed | None = None,
    ) -> Participant:
        """Tell what signalling has changed; None stays as it is. ice_restart: it begins ICE anew, and gets other credentials."""
        body: dict[str, Any] = {"media": media, "signalled": signalled, "ice_restart": ice_restart, "signalling": signalling, "mixed": mixed}
        return cast(Participant, await self._connection.ask("PATCH", path_of("conferences", conference, "participants", participant), body=body))

    async def leave(self, conference: str, participant: str, reason: str = "removed") -> None:
        """Remove a participant. reason, for its record: bye, removed, no-ack, cancelled."""
        await self._connection.ask("DELETE", path_of("conferences", conference, "participants", participant), {"reason": reason})

    async def set_quality(self, conference: str, sender: str, receiver: str, quality: Quality) -> None:
        """Set the highest medium that a receiver gets of a sender."""
        body = {"sender": sender, "receiver": receiver, "quality": quality}
        await self._connection.ask("POST", path_of("conferences", conference, "quality"), body=body)

    async def set_targets(self, conference: str, targets: Sequence[Decision], hold_s: float | None = None) -> None:
        """Give a policy's decisions, all or none. After hold_s seconds without another one the built-in policy decides again."""
        await self._connection.ask("POST", path_of("conferences", conference, "targets"), body={"targets": list(targets), "hold_s": hold_s})

    async def set_tiling(
        self, conference: str, codec: TiledCodec, *, payload_type: int | None = None, places: int | None = None, columns: int | None = None, predicted: bool = False,
        receivers: Sequence[str] | None = None,
    ) -> Tiling:  # fmt: skip
        """Want tiled streams of a conference's video, for these receivers or everybody who can play them; None: as the agent has it by default."""
        names = None if receivers is None else list(receivers)
        body = {"codec": codec, "payload_type": payload_type, "places": places, "columns": columns, "predicted": predicted, "receivers": names}
        return cast(Tiling, await self._connection.ask("PUT", path_of("conferences", conference, "tiling"), body=body))

    async def set_announcements(self, conference: str, announcements: bool) -> None:
        """Whether those who get a mix hear who joins and who leaves."""
        await self._connection.ask("PUT", path_of("conferences", conference, "announcements"), body={"announcements": announcements})

    async def end_tiling(self, conference: str) -> None:
        """Want no tiled streams any more."""
        await self._connection.ask("DELETE", path_of("conferences", conference, "tiling"))

    async def estimates(self) -> AsyncIterator[Estimate]:
        """Estimates as they come, until the connection ends. Some are left out for a reader that is too slow."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=40.0)
        async with self._connection.open("GET", path_of("estimates"), timeout=timeout) as response:
            async for text in response.content:
                line = json.loads(text)
                if "kind" not in line:
                    yield cast(Estimate, line)
