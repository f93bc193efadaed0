"""The journal in Redis: for agents of which another can take over. Every write carries the writer's fencing token.

Keys, with one hash tag for a group so that a Redis cluster keeps them together (GROUP is configured):

    shunt:{GROUP}:calls      hash   call-id -> body
    shunt:{GROUP}:sessions   hash   session of the built-in relay -> body
    shunt:{GROUP}:conferences  hash  conference -> body
    shunt:{GROUP}:token      the fencing token granted last; it only grows
    shunt:{GROUP}:lease      JSON of the agent in charge; expires unless it is renewed
    shunt:{GROUP}:format     format of the bodies
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from shunt.journal.codec import FORMAT
from shunt.journal.store import Fenced, Group, JournalError

log = logging.getLogger(__name__)

TIMEOUT_S = 0.5
_LOAD_TIMEOUT_S = 30.0
_PAGE = 1000

# KEYS: token, then the hashes. ARGV: token, for each hash the number of rows set and of rows removed, then all of them in this order.
_WRITE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end
local at = 2 * #KEYS
for hash = 2, #KEYS do
  for i = 1, tonumber(ARGV[2 * hash - 2]) do redis.call('HSET', KEYS[hash], ARGV[at], ARGV[at + 1]); at = at + 2 end
  for i = 1, tonumber(ARGV[2 * hash - 1]) do redis.call('HDEL', KEYS[hash], ARGV[at]); at = at + 1 end
end
return 1
"""
# KEYS: lease, token. ARGV: the lease's body, milliseconds, the least token, the holder that is known to be dead or ''.
_ACQUIRE = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[4] then return {0, held} end
local token = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[3])) + 1
redis.call('SET', KEYS[2], token)
local body = cjson.decode(ARGV[1])
body['token'] = token
local text = cjson.encode(body)
redis.call('SET', KEYS[1], text, 'PX', ARGV[2])
return {token, text}
"""
# KEYS: lease, token. ARGV: token, the lease's body, milliseconds. 1: extended; 0: another has it; -1: the store was emptied.
_RENEW = """
local last = redis.call('GET', KEYS[2])
if not last then return -1 end
if last ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Grant:
    """What acquire() found: token > 0 when granted; body is the lease as it stands now."""

    token: int
    body: str


class RedisStore:
    """One group's keys on one Redis. Also grants the group's lease (see shunt.standby.lease)."""

    promises = False  # only Redis itself outlives this host

    def __init__(self, url: str, group: str, *, password: str | None = None) -> None:
        """url: redis://, rediss:// (TLS) or unix:// as redis-py reads it. Raises ValueError for any other."""
        self.name = f"journal {_without_password(url)} group {group}"
        self.group = group
        self.token = 0
        prefix = f"shunt:{{{group}}}:"
        self._calls, self._sessions, self._conferences, self._token, self._lease, self._format = (
            prefix + key for key in ("calls", "sessions", "conferences", "token", "lease", "format")
        )
        extra: dict[str, Any] = {"password": password} if password is not None else {}
        # Retries are the caller's: a lease must be known to be lost in time.
        self._redis = Redis.from_url(
            url, decode_responses=True, socket_timeout=_LOAD_TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0), health_check_interval=0, **extra
        )
        script = self._redis.register_script
        self._write_script, self._acquire_script = script(_WRITE), script(_ACQUIRE)
        self._renew_script, self._release_script = script(_RENEW), script(_RELEASE)

    async def _ask(self, work: Awaitable[T], seconds: float = TIMEOUT_S) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise JournalError(f"{self.name}: no answer within {seconds:g} s") from None
        except ResponseError as error:
            if "FENCED" in str(error):
                raise Fenced(f"{self.name}: another agent has taken over") from None
            raise JournalError(f"{self.name}: {error}") from error
        except (RedisError, OSError) as error:
            raise JournalError(f"{self.name}: {error}") from error

    async def open(self) -> None:
        found = await self._ask(self._redis.set(self._format, str(FORMAT), nx=True, get=True))
        if found not in (None, str(FORMAT)):
            raise JournalError(f"{self.name}: format {found}, this version reads {FORMAT}; use another group to start empty")

    async def load(self) -> tuple[list[tuple[str, str]], dict[str, str]]:
        calls, sessions = await self._all(self._calls), await self._all(self._sessions)
        return list(calls.items()), sessions

    async def conferences(self) -> dict[str, str]:
        return await self._all(self._conferences)

    async def _all(self, key: str) -> dict[str, str]:
        found: dict[str, str] = {}
        cursor = 0
        while True:
            cursor, page = await self._ask(self._redis.hscan(key, cursor, count=_PAGE), _LOAD_TIMEOUT_S)
            found.update(page)
            if cursor == 0:
                return found

    def promise(self, group: Group) -> bool:
        return False

    async def write(self, group: Group) -> None:
        counts: list[int] = []
        rows: list[str] = []
        for bodies in (group.calls, group.sessions, group.conferences):
            kept = [text for name, body in bodies.items() if body is not None for text in (name, body)]
            gone = [name for name, body in bodies.items() if body is None]
            counts += [len(kept) // 2, len(gone)]
            rows += kept + gone
        keys = [self._token, self._calls, self._sessions, self._conferences]
        await self._ask(self._write_script(keys=keys, args=[self.token, *counts, *rows]), TIMEOUT_S + len(rows) / 5000)

    async def close(self) -> None:
        await self._redis.aclose()

    # -- the lease ----------------------------------------------------------------------------------

    async def acquire(self, body: dict[str, Any], ms: int, *, least: int = 0, instead_of: str = "") -> Grant:
        """Ask for the lease; granted when nobody holds it, or its text is `instead_of` (whose holder is known to be dead).

        least: a token that is known to have been granted, in case the store was emptied. Raises JournalError.
        """
        token, text = await self._ask(self._acquire_script(keys=[self._lease, self._token], args=[json.dumps(body), ms, least, instead_of]))
        if token:
            self.token = int(token)
        return Grant(int(token), text)

    async def renew(self, body: str, ms: int) -> int:
        """1: extended; 0: another agent has been granted the lease since; -1: the store was emptied. Raises JournalError."""
        return int(await self._ask(self._renew_script(keys=[self._lease, self._token], args=[self.token, body, ms])))

    async def emptied(self) -> bool:
        """Whether no token was ever granted, as far as the store remembers. Raises JournalError."""
        return not await self._ask(self._redis.exists(self._token))

    async def release(self, body: str) -> None:
        """Let another agent take over at once. Raises JournalError."""
        await self._ask(self._release_script(keys=[self._lease], args=[body]))


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
