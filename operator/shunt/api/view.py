"""What the REST API asks of the agent. The API itself keeps no call state."""

from __future__ import annotations

from typing import Any, Protocol

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
    """The agent as operators see it. Every question to it may raise AgentUnavailable and NotDone.
    All values are JSON types; times are seconds unless the key says otherwise."""

    async def status(self) -> dict[str, Any]:
        """The agent as a whole.

        {version, agent: {reachable, age_s, error, epoch, pid}, ready, problems: [{code, severity, subject, message, remedy, since_s}], role, uptime_s, control: [socket],
        relays: [{name, address, alive, sessions, version, keepalive, packets_relayed}], data_plane: {target, connected, name, entries, capacity,
        ours, orphans, lacks: [sentence], …} or None, calls: number, streams: {state: number}, packets: {data_plane, relay}, commands: {command:
        number}, sip_trace: {messages, byes, blocked, malformed} or None, …}; of this daemon events, history, cdr and homer.
        """
        ...

    def own(self) -> dict[str, Any]:
        """This daemon's part of the status: {events, history, cdr, homer}, without a request to the agent."""
        ...

    async def problems(self) -> list[str]:
        """Why calls are not served as they should be: a code and a cause each; none: nothing is known to be wrong."""
        ...

    async def health(self) -> dict[str, Any]:
        """The judgement of now (shunt.health): {verdict, findings: [{code, severity, subject, message, remedy, since_s}], unknown: [{code, message}]}."""
        ...

    def health_known(self) -> dict[str, Any]:
        """As `health`, by what was read last."""
        ...

    async def calls(self, state: str | None, reason: str | None, match: str | None, offset: int, limit: int, problems: bool = False, by_mos: bool = False) -> tuple[list[dict[str, Any]], int]:
        """The calls offset to offset + limit of those that fit, in order of creation, and how many fit.

        Each is as `call` gives it, with the counters at hand, without quality, but with `problems` (texts) and its worst `loss_percent`, `jitter_ms` and
        `mos` at present. state and reason: of one and the same stream; match: part of the Call-ID; problems: only calls of which something is wrong now;
        by_mos: the worst MOS first, calls without one last.
        """
        ...

    def known_calls(self, state: str | None, reason: str | None, match: str | None) -> tuple[list[dict[str, Any]], float]:
        """The calls that were up when the agent last answered, as `calls` gives them, by their events; and how many seconds ago that was.

        Figures are None. Raises AgentUnavailable where the agent never answered.
        """
        ...

    def known_call(self, call_id: str) -> tuple[dict[str, Any] | None, float]:
        """As `call`, by the call's events, and how many seconds ago the agent last answered. Raises as known_calls."""
        ...

    def find(self, text: str, since: float, until: float, over: bool | None, limit: int) -> list[dict[str, Any]]:
        """Calls whose From, To or Call-ID has this text, latest first, as their SIP said: {call_id, from, to, began, ended, answered, sip_code, hung_up}.

        since, until: Unix time; a call fits that was there at any moment between. over: only calls that are over, or only those that are not. Times are ISO 8601.
        """
        ...

    async def call(self, call_id: str) -> dict[str, Any] | None:
        """One call (calls.view) with the counters at hand, its quality (quality.report), and `from` and `to` (URIs of SIP; None: not seen); None if unknown."""
        ...

    async def why(self, call_id: str) -> dict[str, Any] | None:
        """As `call`, with counters read from the data plane now. Raises DataPlaneUnavailable."""
        ...

    async def history(self, call_id: str) -> dict[str, Any] | None:
        """What happened to a call, None if nothing is known of it.

        {call_id, begin (ISO 8601), signalling (as of `find`; None: none was seen), report (text for a ticket), diagnosis: [{level: 'problem', 'hint' or 'ok', text, media, party}],
        counters_fresh, left_out, quality: [{call_id, media}], events: [{after_ms, time, kind,
        what, media, party, component, stream, title, text, count, until_ms, facts, seq}]}, events in order of time.
        """
        ...

    async def trace(self, src: str, dst: str) -> dict[str, Any]:
        """Where the data plane would send a packet from src to dst (ADDRESS:PORT).

        {key, data_plane: {verdict, reason, out_src, out_dst, out_interface} (the data plane's own words)
        or None, call: {call_id, media, from, component, state, reason, expected_source} or None: whose
        packets arrive at dst}. Raises DataPlaneUnavailable.
        """
        ...

    def registry(self) -> CollectorRegistry:
        """Metrics that are counted as things happen."""
        ...

    async def agent_metrics(self) -> str:
        """The agent's own metrics, in the OpenMetrics text format. Raises AgentUnavailable."""
        ...
