"""The softswitch process: the kernel's relay table, served over BF Runtime until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from shunt import supervisor
from shunt.bfrt.tls import server_credentials
from shunt.config.model import Tls
from shunt.privileges import BPF, NET_ADMIN, PERFMON, SYS_ADMIN, keep_only
from shunt_softswitch import schema
from shunt_softswitch.dataplane import DataPlane, DataPlaneError
from shunt_softswitch.service import BfRuntimeService
from shunt_softswitch.service import DataPlane as ServedDataPlane

log = logging.getLogger(__name__)

# Notices taken from the kernel in one turn, so that a spray of packets does not hold up writes.
_LEARN_TURN = 1024
# A message costs its sender and its reader more than twenty notices in it: after notices that came soon after the last the kernel is not
# looked at for _GATHER_S seconds, so that more come together. Soon is within _NEAR_S, besides such a pause.
_NEAR_S, _GATHER_S = 0.004, 0.004
_HOUSEKEEPING = 5.0
_GRPC_CALL, _CUT_OFF_S = "_schedule_rpc_coro", 1.0  # the coroutine in which gRPC runs a call, and seconds for it to end

_GRPC_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Two servers on one port would each get half of the clients.
    ("grpc.so_reuseport", 0),
    # A client that hangs or whose host died must not keep its binding: its standby takes over within two seconds.
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 800),
    ("grpc.http2.ping_timeout_ms", 800),  # without it a minute, whatever the keep-alive's own time-out
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)


@asynccontextmanager
async def serve(service: BfRuntimeService, listen: list[str], credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[list[int]]:
    """Serve on every address ("HOST:PORT", port 0 for any, or "unix:PATH"); yields the ports. Raises OSError for an address that is taken."""
    server = grpc.aio.server(options=_GRPC_OPTIONS)
    server.add_generic_rpc_handlers((service.handler(),))
    ports = []
    for address in listen:
        try:
            port = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from None
        if port == 0:
            raise OSError(f"cannot listen on {address}")
        ports.append(port)
    await server.start()
    watch = asyncio.create_task(service.watch_idle())
    try:
        yield ports
    finally:
        watch.cancel()
        await server.stop(grace=0.2)
        # Calls that this cut off end a moment later. Cut off once more, by the end of the event loop, each would leave a traceback on stderr.
        if calls := [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == _GRPC_CALL]:
            await asyncio.wait(calls, timeout=_CUT_OFF_S)


async def run(
    *,
    interfaces: list[str],
    listen: list[str] | None = None,
    capacity: int = 262_144,
    pin_dir: str = "/sys/fs/bpf/shunt",
    mode: str = "auto",
    strays: str = "drop",
    conference_copies: int = 0,
    packet_limit: int = 0,
    tls: dict[str, str | None] | None = None,
    unload_on_exit: bool = False,
) -> None:
    """Attach to the interfaces and serve until cancelled.

    listen defaults to 127.0.0.1:50052. At the end programs and maps stay pinned and go on forwarding,
    unless unload_on_exit. Raises OSError, with the reason, when the data plane or an address cannot be had.
    """
    listen = ["127.0.0.1:50052"] if listen is None else listen
    credentials = server_credentials(Tls.model_validate(tls)) if tls is not None else None
    try:
        dataplane = DataPlane.open(interfaces=interfaces, capacity=capacity, pin_dir=pin_dir, mode=mode, strays=strays, copies=conference_copies, packet_limit=packet_limit)
    except DataPlaneError as error:
        raise OSError(str(error)) from error
    loop = asyncio.get_running_loop()
    settle_garbage_collector()
    keep_only((NET_ADMIN, SYS_ADMIN, PERFMON, BPF))  # before the first thread: threads keep what they are born with
    try:
        replication = dataplane.replication
        service = BfRuntimeService(dataplane, schema.load(dataplane.capacity, replication.capacity if replication is not None else 0))
        async with serve(service, listen, credentials) as ports:
            learning = _Gathering(loop, dataplane.learn_fd, lambda: service.notify_learn(dataplane.poll_learn(_LEARN_TURN)))
            _watch(loop, dataplane.event_fd, dataplane.handle_events)
            if replication is not None:
                _watch(loop, replication.agent_fd, lambda: service.notify_packets([frame for _, frame in replication.poll_agent()]))
            try:
                for name, _, _, queues in dataplane.interfaces():
                    if queues == 1:
                        log.warning("%s has one receive queue: one processor core takes all of its packets (ethtool -L)", name)
                _announce(dataplane, listen, ports)
                async with supervisor.signs_of_life():
                    while True:
                        await asyncio.sleep(_HOUSEKEEPING)
                        _guarded(dataplane.handle_events)
            finally:
                learning.stop()
                if replication is not None:
                    loop.remove_reader(replication.agent_fd)
                loop.remove_reader(dataplane.event_fd)
    finally:
        if unload_on_exit:
            dataplane.unload()
            log.info("programs and entries are out of the kernel")
        else:
            dataplane.close()
            log.info("programs and entries stay in the kernel, pinned in %s", pin_dir)


def settle_garbage_collector() -> None:
    """Make Python look for reference cycles seldom: a batch makes many objects and no cycles, which costs a third of the rate."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class _Gathering:
    """Calls a handler when a file descriptor is readable: at once where that is seldom, else for all that came in a moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, handler: Callable[[], None]) -> None:
        self._loop = loop
        self._fd = fd
        self._handler = handler
        self._last = -math.inf
        self._pause: asyncio.TimerHandle | None = None
        loop.add_reader(fd, self._readable)

    def _readable(self) -> None:
        _guarded(self._handler)
        now = self._loop.time()
        if now - self._last < _NEAR_S + _GATHER_S:
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(_GATHER_S, self._resume)
        self._last = now

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._fd, self._readable)

    def stop(self) -> None:
        """Call it no more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._fd)


def _watch(loop: asyncio.AbstractEventLoop, fd: int, handler: Callable[[], None]) -> None:
    loop.add_reader(fd, _guarded, handler)


def _guarded(handler: Callable[[], None]) -> None:
    """One failed notice or route change must not end the process, whose other entries are fine."""
    try:
        handler()
    except Exception:
        log.exception("kernel event")


def describe(dataplane: ServedDataPlane) -> str:
    """The interfaces with their XDP modes, for people: "native XDP on eth0, eth1"."""
    modes: dict[str, list[str]] = {}
    for name, _, mode, _ in dataplane.interfaces():
        modes.setdefault(mode, []).append(name)
    return "; ".join(f"{mode} XDP on {', '.join(names)}" for mode, names in modes.items()) or "no interface"


def _announce(dataplane: DataPlane, listen: list[str], ports: list[int]) -> None:
    """Say on stdout, and to systemd where it started us, that everything works."""
    addresses = ", ".join(address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}" for address, port in zip(listen, ports))
    totals = dataplane.totals()
    line = f"softswitch ready: {describe(dataplane)}; BF Runtime on {addresses}; {totals['entries']} of {totals['capacity']} entries in use"
    print(f"READY {line}", flush=True)
    supervisor.tell(READY=1, STATUS=line)
