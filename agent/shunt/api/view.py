"""What the REST API asks of the agent. The API itself keeps no call state."""

from __future__ import annotations

from typing import Any, Protocol


class DataPlaneUnavailable(Exception):
    """The data plane has not answered, or none is configured; the text says which. The API answers 503."""


class AgentView(Protocol):
    """The agent as operators see it. All values are JSON types; times are seconds unless the key says otherwise."""

    def status(self) -> dict[str, Any]:
        """The agent as a whole.

        {version, uptime_s, control: [socket], relays: [{name, address, alive, sessions, version,
        keepalive}], data_plane: {target, connected, name, entries, capacity} or None, calls: number,
        streams: {state: number}, packets: {data_plane, relay}}, and where known commands: {command:
        number}, sightings: {messages, byes} or None, media_timeouts, strays_ignored, journal_failures.
        """
        ...

    def calls(self) -> list[dict[str, Any]]:
        """Every call with the counters at hand, as `call` gives them; the order does not matter."""
        ...

    def call(self, call_id: str) -> dict[str, Any] | None:
        """One call with the counters at hand, None if unknown.

        {call_id, created (ISO 8601), age_s, relay, from_tag, to_tag, media: [{index, legs: {caller:
        {signalled, learned, relay_address, vouched}, callee: {…}}, streams: [{direction:
        'caller->callee' or 'callee->caller', component: 'rtp' or 'rtcp', state, reason, detail, since_s,
        key, rewrite, packets, bytes, lost, reordered, duplicates, jitter_ms, idle_ms, stray}]}]}
        """
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
