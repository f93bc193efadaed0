"""What the REST API asks of the agent. The API itself keeps no call state."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any, Protocol, runtime_checkable

from prometheus_client import CollectorRegistry


class DataPlaneUnavailable(Exception):
    """The data plane has not answered, or none is configured; the text says which. The API answers 503."""


class AgentUnavailable(Exception):
    """The agent itself has not answered; the text says how long ago it last did. The API answers 503."""


class NotDone(Exception):
    """The agent answered with an error: `status` is that of HTTP, `parameter` what was wrong where that is one parameter."""

    def __init__(self, status: int, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter


class AgentView(Protocol):
    """The agent as operators see it. Who has to ask somebody else may raise AgentUnavailable and NotDone in every method.
    All values are JSON types; times are seconds unless the key says otherwise."""

    def status(self) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """The agent as a whole.

        {version, uptime_s, control: [socket], relays: [{name, address, alive, sessions, version,
        keepalive}], data_plane: {target, connected, name, entries, capacity, lacks: [sentence]} or None, calls: number,
        streams: {state: number}, packets: {data_plane, relay}}, and where known commands: {command:
        number}, sightings: {messages, byes} or None, media_timeouts, strays_ignored, journal_failures.
        """
        ...

    async def calls(self, state: str | None, reason: str | None, match: str | None, offset: int, limit: int) -> tuple[list[dict[str, Any]], int]:
        """The calls offset to offset + limit of those that fit, in order of creation, and how many fit.

        Each is as `call` gives it, with the counters at hand, without quality. state and reason: of one and the same
        stream; match: part of the Call-ID.
        """
        ...

    def call(self, call_id: str) -> dict[str, Any] | None | Awaitable[dict[str, Any] | None]:
        """One call with the counters at hand, None if unknown.

        {call_id, created (ISO 8601), age_s, relay, from_tag, to_tag, media: [{index, legs: {caller:
        {signalled, learned, relay_address, vouched}, callee: {…}}, streams: [{direction:
        'caller->callee' or 'callee->caller', component: 'rtp' or 'rtcp', state, reason, detail, since_s,
        key, rewrite, packets, bytes, lost, reordered, duplicates, jitter_ms, idle_ms, stray}]}], quality:
        [{index, kind, caller: {codec, packets, bytes, loss_percent, jitter_ms, mos, note, …}, callee: {…}}]}
        """
        ...

    async def history(self, call_id: str) -> dict[str, Any] | None:
        """What happened to a call, None if nothing is known of it.

        {call_id, begin (ISO 8601), diagnosis: [{level: 'problem', 'hint' or 'ok', text, media, party}],
        counters_fresh, left_out, quality: [{call_id, media}], events: [{after_ms, monotonic_s, time, kind,
        what, media, party, component, stream, title, text, count, until_ms, facts}]}, events in order of time.
        """
        ...

    def registry(self) -> CollectorRegistry:
        """Metrics that are counted as things happen."""
        ...

    async def why(self, call_id: str) -> dict[str, Any] | None:
        """As `call`, with counters read from the data plane now. Raises DataPlaneUnavailable."""
        ...

    async def trace(self, src: str, dst: str) -> dict[str, Any]:
        """Where the data plane would send a packet from src to dst (ADDRESS:PORT).

        {key, data_plane: {verdict, reason, out_src, out_dst, out_interface} (the data plane's own words)
        or None, call: {call_id, media, from, component, state, reason, expected_source} or None: whose
        packets arrive at dst}. Raises DataPlaneUnavailable; ValueError where src and dst cannot be a
        5-tuple.
        """
        ...

    async def totals(self) -> dict[str, Any]:
        """The data plane's counters since its start (table softswitch.totals), {} where it keeps none."""
        ...


@runtime_checkable
class WithAgent(Protocol):
    """A view of an agent in another process, which has metrics of its own."""

    def status(self) -> dict[str, Any] | Awaitable[dict[str, Any]]: ...

    def registry(self) -> CollectorRegistry: ...

    async def agent_metrics(self) -> str:
        """The agent's own metrics, in the OpenMetrics text format. Raises AgentUnavailable."""
        ...


async def awaited(answer: Any) -> Any:
    """The answer of a view that has it at hand, or has to ask for it."""
    return await answer if inspect.isawaitable(answer) else answer
