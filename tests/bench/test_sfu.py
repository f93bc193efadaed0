"""The conference server in user space that benches compare with."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from bench.rooms import build_all
from bench.sfu import Server
from tests.lab.ports import media_ports


def packet(ssrc: int, number: int) -> bytes:
    return struct.pack("!BBHII", 0x80, 96, number, 0, ssrc) + bytes(20)


@pytest.fixture
async def client() -> AsyncIterator[TestClient]:
    build_all()
    first, last = (int(port) for port in media_ports().split("-"))
    server = Server("127.0.0.1", first, last)
    await server.media.start()
    async with TestClient(TestServer(server.app())) as made:
        yield made
    await server.media.stop()


async def enter(client: TestClient, rooms: dict[str, tuple[str, ...]]) -> tuple[dict[tuple[str, str], socket.socket], dict[tuple[str, str], tuple[str, int]]]:
    """Create conferences of these people; the sockets of each one's media, and where they send to."""
    sockets, relays = {}, {}
    for room, people in rooms.items():
        assert (await client.post(f"/v1/conferences?name={room}")).status == 200
        for name in people:
            answer = await (await client.post(f"/v1/conferences/{room}/participants?name={name}&media=audio,video")).json()
            for leg in answer["media"]:
                made = sockets[name, leg["medium"]] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                made.setblocking(False)
                made.bind(("127.0.0.1", 0))
                host, _, port = leg["relay"].rpartition(":")
                relays[name, leg["medium"]] = host, int(port)
    return sockets, relays


async def got(sock: socket.socket, count: int) -> list[tuple[int, int]]:
    """(SSRC, number) of the packets that come, and nothing after them."""
    loop, found = asyncio.get_running_loop(), []
    for _ in range(count):
        data = await asyncio.wait_for(loop.sock_recv(sock, 2048), 120)
        found.append((int.from_bytes(data[8:12], "big"), int.from_bytes(data[2:4], "big")))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(loop.sock_recv(sock, 2048), 0.1)
    return found


async def test_each_packet_goes_to_all_others_of_its_conference_and_medium(client: TestClient) -> None:
    sockets, relays = await enter(client, {"a": ("ann", "bob", "cem"), "b": ("dan",)})
    assert (await client.post("/v1/conferences?name=a")).status == 409
    assert (await client.post("/v1/conferences/c/participants?name=x")).status == 404
    for index, (name, kind) in enumerate(relays):  # everybody is heard once
        sockets[name, kind].sendto(packet(index, 0), relays[name, kind])
        await asyncio.sleep(0.05)
    assert await got(sockets["ann", "audio"], 2) == [(2, 0), (4, 0)] and await got(sockets["bob", "video"], 1) == [(5, 0)]
    assert await got(sockets["bob", "audio"], 1) == [(4, 0)]
    for number in range(1, 4):
        sockets["ann", "audio"].sendto(packet(0, number), relays["ann", "audio"])
    sockets["ann", "audio"].sendto(b"\x80\xc9" + bytes(20), relays["ann", "audio"])
    for name in ("bob", "cem"):
        assert await got(sockets[name, "audio"], 3) == [(0, 1), (0, 2), (0, 3)]
    await got(sockets["dan", "audio"], 0)
    assert (await client.delete("/v1/conferences/a/participants/cem")).status == 200
    sockets["ann", "audio"].sendto(packet(0, 9), relays["ann", "audio"])
    assert await got(sockets["bob", "audio"], 1) == [(0, 9)]
    await got(sockets["cem", "audio"], 0)
    assert (await client.delete("/v1/conferences/a")).status == 200 and (await client.get("/v1/conferences/a")).status == 404


async def test_a_receiver_does_not_get_what_it_refuses_of_one_sender(client: TestClient) -> None:
    sockets, relays = await enter(client, {"a": ("ann", "bob", "cem")})
    assert (await client.post("/v1/conferences/a/quality?sender=ann&receiver=cem&quality=audio")).status == 200
    assert (await client.post("/v1/conferences/a/quality?sender=ann&receiver=eve&quality=audio")).status == 404
    order = {key: index for index, key in enumerate(relays)}
    for key, relay in relays.items():
        sockets[key].sendto(packet(order[key], 0), relay)
        await asyncio.sleep(0.05)
    for kind in ("audio", "video"):
        sockets["ann", kind].sendto(packet(order["ann", kind], 1), relays["ann", kind])
    await got(sockets["bob", "video"], 2)
    assert (order["ann", "audio"], 1) in await got(sockets["cem", "audio"], 1)
    await got(sockets["cem", "video"], 0)
    assert await got(sockets["ann", "video"], 2) == [(order["bob", "video"], 0), (order["cem", "video"], 0)]
