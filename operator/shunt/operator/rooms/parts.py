"""What the operator daemon does for rooms, put together; and its answers to browsers that call by SIP."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from aiohttp import web

from shunt.admin import AdminClient
from shunt.config.model import Api
from shunt.config.rooms import Rooms as Settings
from shunt.config.values import host_port
from shunt.events.bus import EventBus
from shunt.operator.conferences.browsers import Kept, NotNow
from shunt.operator.conferences.sdp import NotAcceptable
from shunt.operator.rooms import service
from shunt.operator.rooms.edge import EdgeError, EdgeRefused
from shunt.operator.rooms.offer import Malformed, NotTaken
from shunt.operator.rooms.routes import RoomRoutes
from shunt.operator.rooms.service import NoEdge, NotYet, Rooms, SessionGone
from shunt.operator.rooms.tokens import signer


class RoomService:
    """Sessions, links and their routes."""

    def __init__(self, settings: Settings, api: Api, client: AdminClient) -> None:
        """Raises ValueError and OSError where the key of links cannot be had."""
        self._rooms = Rooms(settings, client)
        self._signer = signer(Path(settings.secret_file))
        self.callers = Callers(self._rooms)
        self._url = (settings.url or _own_url(api)).rstrip("/")

    def add_routes(self, app: web.Application, error: Callable[..., web.Response]) -> None:
        """Serve the routes of rooms."""
        RoomRoutes(self._rooms, self._signer, self._url, error).add(app)

    def follow(self, bus: EventBus) -> None:
        """Subscribe what has effects outside of this process."""
        bus.subscribe(self._rooms, service.KINDS)

    def start(self) -> None:
        """Follow the edges."""
        self._rooms.start()

    async def close(self) -> None:
        """Stop; sessions and their media go on."""
        await self._rooms.close()


class Callers:
    """Browsers that call by SIP, as the focus asks for them (`Browsers`)."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def join(self, conference: str, name: str, user: str, offer: str, call: str, kept: Kept) -> tuple[str, str]:
        """As Browsers.join."""
        with _for_sip():
            joined = await self._rooms.join(conference, name, offer, "room", user=user, call=call, kept=kept)
        return joined.session.participant, joined.answer

    async def change(self, conference: str, participant: str, offer: str, kept: Kept) -> str:
        """As Browsers.change."""
        with _for_sip():
            return (await self._rooms.renegotiate(self._rooms.session_of(conference, participant), offer, kept=kept)).answer


@contextlib.contextmanager
def _for_sip() -> Iterator[None]:
    """Errors of rooms become those that the focus knows."""
    try:
        yield
    except (NotTaken, Malformed) as error:
        raise NotAcceptable(str(error)) from error
    except EdgeRefused as error:
        raise (NotAcceptable if error.status in (400, 422) else NotNow)(str(error)) from error
    except (NoEdge, NotYet, EdgeError, SessionGone) as error:
        raise NotNow(str(error)) from error


def _own_url(api: Api) -> str:
    """Where the REST API is reached on this host."""
    listen = host_port(api.listen)
    if listen.path:
        return "http://localhost"
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"http{'s' if api.tls is not None else ''}://{host}:{listen.port}"
