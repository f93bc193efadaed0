"""A client of the agent's admin API (docs/admin-api.md): snapshots, commands, and the event stream."""

from shunt.admin.client import DEFAULT_SOCKET, AdminClient
from shunt.admin.errors import AdminError, AgentError, AgentUnreachable
from shunt.admin.stream import Event, EventStream, Gap

__all__ = ["DEFAULT_SOCKET", "AdminClient", "AdminError", "AgentError", "AgentUnreachable", "Event", "EventStream", "Gap"]
