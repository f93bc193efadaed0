"""Commands of the built-in relay: error codes, what it does not do, repetitions, malformed input; against rtpproxy."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import socket
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.relay.commands import SUPPORTED
from shunt.relay.relay import BuiltinRelay
from shunt.rtpproxy import capabilities
from shunt.rtpproxy.codec import parse_reply


@pytest.fixture
async def relay():
    relay = BuiltinRelay(["127.0.0.1"], 44000, 44999)
    yield relay
    await relay.close()


async def run(relay: BuiltinRelay, *commands: str) -> list[str]:
    return [(await relay.execute(c.encode("latin-1"), None, "127.0.0.1")).decode() for c in commands]


ERRORS = [
    ("", "E5"), ("  ", "E5"), ("&&", "E5"), ("Z foo", "E0"), ("\xff", "E0"), ("U c", "E1"), ("U c 1.2.3.4 6000", "E1"),
    ("L c 1.2.3.4 6000 f t x", "E1"), ("VF", "E1"), ("V 1", "E1"), ("Vx", "E2"), ("X1", "E2"), ("Sx c f", "E2"), ("D c f && S ttl=5", "E3"),
    ("U c 1.2.3.4 6000 f &&", "E3"), ("U c 1.2.3.4 6000 f && Q", "E3"), ("U c 1.2.3.4 6000 f && L 1.2.3.4 5", "E3"),
    ("Q c f && S ttl=0", "E3"), ("Q c f && S tos=256", "E3"), ("Q c f && S ttl=-1", "E3"), ("Q c f && M3:1 x", "E3"),
    ("Dx c f", "E8"), ("Ue c 1.2.3.4 6000 f", "E11"), ("UI c 1.2.3.4 6000 f", "E12"), ("UZ c 1.2.3.4 6000 f", "E13"),
    ("UZ0 c 1.2.3.4 6000 f", "E13"), ("UZ1000 c 1.2.3.4 6000 f", "E13"), ("Uc c 1.2.3.4 6000 f", "E14"), ("Uc0c8 c 1.2.3.4 6000 f", "E14"),
    ("Ul c 1.2.3.4 6000 f", "E15"), ("UR c 1.2.3.4 6000 f", "E16"), ("Ix", "E18"), ("U? c 1.2.3.4 6000 f", "E35"), ("Ut c 1.2.3.4 6000 f", "E35"),
    ("Ut0 c 1.2.3.4 6000 f", "E35"), ("U6 c fd91::1 6000 f", "E36"), ("U c 999.1.1.1 6000 f", "E37"), ("U c host.example 6000 f", "E37"),
    ("U c fd91::1234 6000 f", "E37"), ("U c 1.2.3.4 66000 f", "E37"), ("U c 1.2.3.4 x f", "E37"), ("Ul192.0.2.1 c 1.2.3.4 6000 f", "E72"),
    ("U c 1.2.3.4 6000 f tcp:1.2.3.4:5 a%zz", "E5"), ("U c\0 1.2.3.4 6000 f", "E5"), ("Q c f", "E50"), ("D c f", "E50"), ("P c x s f", "E50"),
    ("R c f", "E50"), ("C c x f", "E50"), ("S c f", "E50"), ("N c f", "E50"), ("L c 1.2.3.4 6000 f t", "0"), ("G bogus", "E68"),
    ("G rtpa_nlost", "E68"), ("U " + "c" * 9000 + " 1.2.3.4 6000 f", "E5"),
]


@pytest.mark.parametrize("command, error", ERRORS, ids=[c[:40] or "empty" for c, _ in ERRORS])
async def test_errors(relay, command, error):
    assert await run(relay, command) == [error]
    assert relay.session_count == 0


async def test_what_is_not_done_is_refused_without_harm_to_the_call(relay):
    offer, *rest = await run(
        relay, "U c 1.2.3.4 6000 f;1 && M3:1 Dfoo", "P c /music session f;1 t;1", "R c f;1 t;1", "C c udp:1.2.3.4:5 f;1 t;1",
        "S c f;1 t;1", "N c f;1 t;1", "Q c f;1 t;1 rtpa_nlost", "Q c f;1 t;1",
    )
    port, address, *tail = offer.split()
    assert address == "127.0.0.1" and tail == ["&&", "-1"]
    assert rest == ["E60", "E65", "E65", "0", "0", "E62", "60 0 0 0 0"]


async def test_resizing_is_accepted_and_ignored(relay):
    [reply] = await run(relay, "USZ20c0,8,101 c 1.2.3.4 6000 f;1")
    assert parse_reply(reply.encode()).address == "127.0.0.1"


async def test_no_u_or_l_says_that_the_node_is_broken():
    """E7 to E10 make OpenSIPS disable the whole relay (facts section 10)."""
    relay = BuiltinRelay(["127.0.0.1"], 44000, 44001)
    try:
        replies = await run(relay, "U c 1.2.3.4 6000 f", "U d 1.2.3.4 6000 f", "L c 1.2.3.4 6000 f t", *(c for c, _ in ERRORS if c[:1] in "UL"))
        assert not {"E7", "E8", "E9", "E10"} & set(replies)
    finally:
        await relay.close()


async def test_capabilities_are_those_that_work(relay):
    answers = {date: (await run(relay, f"VF {date}"))[0] for date in [*capabilities.MEANINGS, 20250523, 20260306, 20260308, 20260309, 19990101]}
    assert {date for date, answer in answers.items() if answer == "1"} == SUPPORTED | {capabilities.NOTIFY}
    assert set(answers.values()) == {"0", "1"}
    for absent in (capabilities.RESIZE, capabilities.COPY, capabilities.SUBCOMMANDS, capabilities.RTPA_COUNTERS, capabilities.STOP_RECORDING):
        assert answers[absent] == "0"
    assert capabilities.keepalive_method({d: a == "1" for d, a in answers.items()}) == "ttl-subcommand"
    assert await run(relay, "VF x", "VF 99999999999999") == ["0", "0"]


async def test_repetition_is_answered_as_before_and_not_executed():
    now = 0.0
    relay = BuiltinRelay(["127.0.0.1"], 44000, 44999, clock=lambda: now)
    try:
        first = await relay.execute(b"Un c 1.2.3.4 6000 f;1", b"k1", "127.0.0.1")
        assert await relay.execute(b"Un c 1.2.3.4 6000 f;1", b"k1", "127.0.0.1") == first
        assert await relay.execute(b"Un c 1.2.3.4 6000 f;1", b"k1", "127.0.0.9") != first, "another server's cookie"
        assert await relay.execute(b"D c f", b"k1", "127.0.0.1") == b"0", "another command with the same cookie"
        assert await relay.execute(b"D c f", b"k1", "127.0.0.1") == b"0"
        assert await relay.execute(b"G ncmds_rcvd ncmds_rcvd_ndups") == b"6 2"
        now = 36.0
        assert await relay.execute(b"D c f", b"k1", "127.0.0.1") == b"E50"
    finally:
        await relay.close()


async def test_delete_with_tags_of_all_kinds(relay):
    async def create(*medias: int) -> None:
        for n in medias:
            await run(relay, f"U c 1.2.3.4 6000 f;{n}", f"L c 1.2.3.5 6000 f;{n} t;{n}")

    await create(1, 2, 3)
    assert await run(relay, "D c f;2 t;2", "Q c f;2 t;2", "Q c f;1 t;1") == ["0", "E50", "60 0 0 0 0"]
    assert await run(relay, "D c t f", "D c f t") == ["0", "E50"] and relay.session_count == 0
    await create(1)
    assert await run(relay, "D c t", "D c ff", "D c f;11", "D other f", "D c f") == ["E50", "E50", "E50", "E50", "0"]
    await create(1)
    await run(relay, "Uw c 1.2.3.4 6000 f;1")
    assert await run(relay, "D c f t", "Q c f;1 t;1", "Dw c t f", "Q c f;1 t;1") == ["0", "60 0 0 0 0", "0", "E50"]


async def test_x_ends_everything(relay):
    await run(relay, "U a 1.2.3.4 6000 f;1", "U b 1.2.3.4 6000 f;1")
    assert await run(relay, "X", "Q a f;1", "G nsess_created nsess_destroyed") == ["0", "E50", "2 2"]
    assert relay.sessions() == []


async def test_delete_as_a_sub_command_ends_the_session(relay):
    await run(relay, "U a 1.2.3.4 6000 f;1")
    assert await run(relay, "Q a f;1 && D && S tos=8 && S ttl=3", "Q a f;1") == ["60 0 0 0 0 && 0 && -1", "E50"]


_WORDS = st.sampled_from([
    "U", "L", "D", "Q", "V", "VF", "I", "G", "X", "P", "S", "R", "C", "N", "&&", "Uc0,8", "LEI6", "Uw", "Dw", "Un", "Qv", "c", "d", "1.2.3.4", "-", "0",
    "6000", "65535", "f;1", "f", "t;1", "t", "ttl=5", "tos=8", "tcp:1.2.3.4:5", "T%20", "20050322", "ttl", "l127.0.0.1", "UR127.0.0.1", "::1", "\x00", "é",
])


@settings(max_examples=300, deadline=None)
@given(commands=st.lists(st.one_of(st.lists(_WORDS, max_size=9).map(" ".join).map(lambda s: s.encode("latin-1")), st.binary(max_size=60)), max_size=12))
def test_any_bytes_get_a_reply(commands):
    async def body() -> None:
        relay = BuiltinRelay(["127.0.0.1", "::1"], 44000, 44031, quarantine=0)
        try:
            for command in commands:
                reply = await relay.execute(command, b"k", None)
                assert isinstance(reply, bytes) and not reply.endswith(b"\n")
            for session in relay.sessions():
                assert session.to_callee.port
            relay.adopt([])
            await relay.execute(b"X")
            assert relay.session_count == 0 and not relay._media and not relay._forwarder._ports
            assert relay._ports.used("127.0.0.1") == relay._ports.used("::1") == 0
        finally:
            await relay.close()

    asyncio.run(body())


# -- side by side with rtpproxy ---------------------------------------------------------------------------

RTPPROXY = shutil.which("rtpproxy")


class Rtpproxy:
    """A real rtpproxy 3.x on loopback, asked over udp."""

    def __init__(self, port: int, *options: str) -> None:
        self.address = ("127.0.0.1", port)
        self.process = subprocess.Popen(
            [RTPPROXY, "-f", "-F", "-s", f"udp:127.0.0.1:{port}", "-m", "45000", "-M", "45999", *options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.settimeout(0.5)
        self.count = 0
        for _ in range(20):
            try:
                self.ask(b"V")
                return
            except OSError:
                time.sleep(0.1)
        self.close()
        raise AssertionError("rtpproxy does not answer")

    def ask(self, body: bytes) -> bytes:
        self.count += 1
        self.sock.sendto(b"k%d %s" % (self.count, body), self.address)
        return self.sock.recv(4096).partition(b" ")[2].rstrip(b"\n")

    def close(self) -> None:
        self.sock.close()
        self.process.terminate()
        self.process.wait(5)


def random_command(rng: random.Random, bridging: bool) -> str:
    call = rng.choice(["c1", "c2", "c3"])
    tags = [f"{rng.choice('ab')}{rng.choice([';1', ';1', ';2', ''])}" for _ in range(rng.choice([1, 2, 2]))]
    kind = rng.choice("UUUULLLLDDQQQSX" if rng.random() < 0.1 else "UUUULLLLDQQQ")
    if kind in "UL":
        letters = rng.choice(["", "", "c0,8", "A", "S", "w", "W", "n", "6", "E", "IE", "EI", "IEI", "?", "l127.0.0.2", "R127.0.0.1", "e" if bridging else "c"])
        if letters == "6" and not bridging:
            letters = ""
        address = rng.choice(["192.0.2.1", "192.0.2.2", "-", "0.0.0.0", "999.1.1.1"])
        after = rng.choice(["", "", "", " && S ttl=77", " && S ttl=0", " && L 192.0.2.7 7000", " && L 192.0.2.7 7000 && S ttl=9", " && D", " && Dw", " && X", " && S foo=1"])
        return f"{kind}{letters} {call} {address} {rng.choice([6000, 7000, 65535])} {' '.join(tags)}{after}"
    if kind == "D":
        return f"D{rng.choice(['', '', 'w', 'x'])} {call} {' '.join(tags)}"
    if kind == "Q":
        names = " ttl npkts_ina nrelayed" if len(tags) == 2 and rng.random() < 0.3 else ""
        return f"Q{rng.choice(['', 'v', 'x'])} {call} {' '.join(tags)}{names}{rng.choice(['', '', ' && S ttl=33', ' && D'])}"
    if kind == "S":
        return f"S {call} {' '.join(tags)}"
    return "X"


@pytest.mark.skipif(RTPPROXY is None, reason="no rtpproxy on PATH to compare with")
@pytest.mark.parametrize("bridging", [False, True], ids=["one address", "bridging"])
async def test_random_commands_are_answered_as_by_rtpproxy(bridging):
    options = ("-l", "127.0.0.1/127.0.0.2") if bridging else ("-l", "127.0.0.1")
    theirs = Rtpproxy(46100 + bridging, *options)
    ours = BuiltinRelay(["127.0.0.1", "127.0.0.2"] if bridging else ["127.0.0.1"], 44000, 44999, quarantine=0)
    try:
        for seed in range(12):
            rng = random.Random(seed)
            history: list[str] = []
            ports: dict[str, str] = {}
            for _ in range(120):
                command = random_command(rng, bridging)
                expected = theirs.ask(command.encode()).decode()
                got = (await ours.execute(command.encode())).decode()
                history.append(f"{command}  ->  {expected}  |  {got}")
                # A port and its address are one thing: the same number may be given out on two addresses.
                theirs_words, our_words = (re.sub(r"(\d{5}) (127\S+)", r"\2:\1", text).split() for text in (expected, got))
                same = len(theirs_words) == len(our_words)
                for a, b in zip(theirs_words, our_words):
                    if ":" in a and ":" in b:
                        same = same and ports.setdefault(a, b) == b and a.partition(":")[0] == b.partition(":")[0]
                    elif command[0] == "Q" and a != b:
                        # rtpproxy counts its seconds by its own ticks.
                        ttls = [int(word.removeprefix("ttl=")) for word in (a, b) if word.removeprefix("ttl=").isdigit()]
                        same = same and len(ttls) == 2 and abs(ttls[0] - ttls[1]) <= 1 and min(ttls) > 1
                    else:
                        same = same and a == b
                assert same, "\n".join([*history[-40:], f"ports so far: {ports}"])
                # Freed ports may be given out again, by each side to another session.
                live = {f"{leg.relay}:{leg.port}" for s in ours.sessions() for leg in (s.to_callee, s.to_caller)}
                ports = {a: b for a, b in ports.items() if b in live}
            theirs.ask(b"X")
            await ours.execute(b"X")
    finally:
        theirs.close()
        await ours.close()
