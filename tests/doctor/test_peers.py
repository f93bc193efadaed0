"""Data plane, relays, Redis: what their answers mean, and real sockets that answer, or not."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from pathlib import Path

import pytest

from shunt.config.model import Journal
from shunt.doctor.facts import Connection, Facts, RedisAnswer, RelayAnswer, Unknown
from shunt.doctor.finding import Finding
from shunt.doctor.host import peers as ask
from shunt.doctor.peers import ASKED, QUERY, TTL_MODIFIER, TTL_SUBCOMMAND, check
from tests.doctor.hosts import by_subject, config, facts
from tests.lab.ports import free_port
from tests.lab.redis import LocalRedis
from tests.tools.relay_double import RelayDouble

TARGET, R1, E1 = "data plane unix:/run/shunt-softswitch/bfrt.sock", "relay r1 udp:127.0.0.1:22222", "relay e1 udp:127.0.0.1:2223"


def found(host: Facts) -> dict[str, Finding]:
    return by_subject(check(config(), host))


def test_the_data_planes_socket() -> None:
    assert found(facts())[TARGET].verdict == "ok"
    missing = found(facts(target=Connection("No such file or directory", "missing")))[TARGET]
    assert missing.verdict == "fail" and "start the softswitch" in missing.advice
    assert "socket_group" in found(facts(target=Connection("Permission denied", "denied")))[TARGET].advice
    assert found(facts(target=Connection("odd")))[TARGET].advice
    assert found(facts(target=Unknown("no result")))[TARGET].verdict == "unknown"


def relay(answer: RelayAnswer | Unknown) -> Finding:
    return found(facts(relays={"r1": answer, "e1": RelayAnswer("rtpengine")}))[R1]


def test_what_a_relay_can_do() -> None:
    assert "S ttl=" in relay(RelayAnswer("1", dict.fromkeys(ASKED, True))).found
    assert "kept with T;" in relay(RelayAnswer("1", {QUERY: True, TTL_MODIFIER: True})).found
    plain = relay(RelayAnswer("1", {QUERY: True, TTL_SUBCOMMAND: False}))
    assert plain.verdict == "ok" and "every third of ttl" in plain.found and "no time-out notices" in plain.found
    legacy = relay(RelayAnswer("20040107", {}))
    assert legacy.verdict == "warn" and "type: rtpengine" in legacy.advice
    assert relay(RelayAnswer(error="no answer within 1 s")).verdict == "fail"
    assert relay(Unknown("no result")).verdict == "unknown"
    assert found(facts())[E1].verdict == "ok"


def test_redis() -> None:
    def redis(answer: RedisAnswer | Unknown) -> str:
        return found(facts(redis=answer))["Redis"].verdict

    answers = [RedisAnswer(True), RedisAnswer(False), RedisAnswer(None), RedisAnswer(error="NOAUTH"), Unknown("no result")]
    assert [redis(answer) for answer in answers] == ["ok", "warn", "unknown", "fail", "unknown"]
    assert "Redis" not in found(facts())


async def _rtpproxy(body: bytes) -> bytes | None:
    if body == b"V":
        return b"20040107"
    return b"1" if body in (b"VF %d" % QUERY, b"VF %d" % TTL_MODIFIER) else b"0"


@pytest.mark.parametrize("kind", ["udp", "tcp", "unix", "cunix"])
async def test_a_relay_is_asked_over_every_kind_of_socket(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "relay.sock") if "unix" in kind else ""
    async with RelayDouble(kind, path, answer=_rtpproxy) as double:
        answer = await asyncio.to_thread(ask.rtpproxy, double.address, ASKED)
        assert {body for _, body in double.commands} == {b"V", *(b"VF %d" % date for date in ASKED)}, "nothing that changes a session"
    assert answer == RelayAnswer("20040107", {date: date in (QUERY, TTL_MODIFIER) for date in ASKED})


@pytest.mark.parametrize("kind", ["udp", "tcp"])
async def test_a_relay_that_says_something_else(kind: str) -> None:
    async def odd(_: bytes) -> bytes:
        return b"E1"

    async with RelayDouble(kind, answer=odd) as double:
        answer = await asyncio.to_thread(ask.rtpproxy, double.address, ASKED)
    assert answer.error is not None and "'E1'" in answer.error


async def test_a_relay_that_says_nothing_is_waited_for_a_second() -> None:
    async def silent(_: bytes) -> None:
        return None

    async with RelayDouble("udp", answer=silent) as double:
        began = time.monotonic()
        assert (await asyncio.to_thread(ask.rtpproxy, double.address, ASKED)).error == "no answer within 1 s"
        assert time.monotonic() - began >= 1
        assert len(double.commands) > 1, "a datagram may be lost"


async def test_rtpengines_ping() -> None:
    async def engine(body: bytes) -> bytes:
        assert body == b"d7:command4:pinge"
        return b"d6:result4:ponge"

    async with RelayDouble("udp", answer=engine) as double:
        assert await asyncio.to_thread(ask.rtpengine, double.address) == RelayAnswer("rtpengine")
    async with RelayDouble("udp", answer=_rtpproxy) as double:
        assert "not pong" in ((await asyncio.to_thread(ask.rtpengine, double.address)).error or "")


def test_nobody_there(tmp_path: Path) -> None:
    port = free_port(socket.SOCK_STREAM)
    assert ask.connect(f"127.0.0.1:{port}").code == "refused"
    assert ask.connect(f"unix:{tmp_path}/none.sock").code == "missing"
    assert ask.connect("no-such-host.invalid:1").code == "name"
    assert ask.rtpproxy(f"udp:127.0.0.1:{free_port()}", ASKED).error == "nothing listens there"
    assert ask.rtpproxy(f"cunix:{tmp_path}/none.sock", ASKED).error == "No such file or directory"
    assert ask.agent(f"{tmp_path}/none.sock") is None
    assert (ask.redis(Journal(redis=f"redis://127.0.0.1:{port}/0")).error or "").endswith("refused")


async def test_something_else_in_the_place_of_redis() -> None:
    async with RelayDouble("tcp", answer=_rtpproxy) as double:
        answer = await asyncio.to_thread(ask.redis, Journal(redis=f"redis://127.0.0.1:{double.port}/0"))
    assert answer.error is not None and answer.error.startswith("its answer is '0") and answer.error.endswith("no Redis")


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_a_real_redis(tmp_path: Path) -> None:
    server = LocalRedis(tmp_path).start()
    try:
        assert ask.redis(Journal(redis=server.url)) == RedisAnswer(True)
        server.command("CONFIG", "SET", "appendonly", "no")
        assert ask.redis(Journal(redis=server.url)) == RedisAnswer(False)
        server.command("CONFIG", "SET", "requirepass", "correct horse")
        assert "NOAUTH" in (ask.redis(Journal(redis=server.url)).error or "")
        secret = tmp_path / "password"
        secret.write_text("correct horse\n")
        assert ask.redis(Journal(redis=server.url, redis_password_file=str(secret))) == RedisAnswer(False)
        secret.write_text("wrong\n")
        assert "WRONGPASS" in (ask.redis(Journal(redis=server.url, redis_password_file=str(secret))).error or "")
    finally:
        server.kill()
