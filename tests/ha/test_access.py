"""Strangers are refused, floods are bounded, and processes keep no more rights than they need."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shunt.bfrt.tls import client_credentials
from shunt.config.load import ConfigError, loads
from shunt.config.model import Tls
from shunt.tables.relay_table import RelayTable
from tests.ha.pair import ROOT, AgentProcess
from tests.lab.ports import media_ports
from tests.softswitch.process import Softswitch


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[AgentProcess]:
    """An agent with the built-in relay and no data plane."""
    config = {"builtin_relay": {"addresses": ["127.0.0.1"], "ports": media_ports()}, "journal": {"path": str(tmp_path / "j.sqlite")}}
    process = AgentProcess(tmp_path, "agent", config).start()
    try:
        await process.until(lambda status: True)
        yield process
    finally:
        process.kill()
        await process.client.close()


def _resident_mib(process: AgentProcess) -> int:
    assert process._popen is not None
    return next(int(line.split()[1]) // 1024 for line in Path(f"/proc/{process._popen.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))


async def test_flood_of_control_commands(agent: AgentProcess) -> None:
    """Thousands of datagrams a second without sense or about calls that are not: honest commands are answered meanwhile, memory stays."""
    assert (await agent.say("Uc8 honest 127.0.0.1 6000 A")).split()[0].isdigit()
    before = _resident_mib(agent)
    kind, _, port = agent.control.partition(":127.0.0.1:")
    flood = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    flood.setblocking(False)
    sent, slowest, began_at = 0, 0.0, time.monotonic()
    while (took := time.monotonic() - began_at) < 2.0 or (sent < 3000 and took < 12.0):  # a busy machine takes longer over as many
        for _ in range(300):
            try:
                flood.sendto([b"%d_1 D nobody%d A B" % (sent, sent), b"\xff\x00" * 40, b"%d U" % sent, b"%d_2 Q x%d A B" % (sent, sent)][sent % 4], ("127.0.0.1", int(port)))
                sent += 1
            except BlockingIOError:
                break
        began = time.monotonic()
        assert await agent.say("Q honest A") is not None
        slowest = max(slowest, time.monotonic() - began)
    flood.close()
    grown = _resident_mib(agent) - before
    print(f"{sent} datagrams in {took:.1f} s; the slowest honest command took {slowest * 1000:.0f} ms; {grown} MiB more")
    assert sent >= 3000 and slowest < 3.0 and grown < 100
    assert (await agent.get("/v1/calls/honest"))["call_id"] == "honest"


async def test_flood_of_rest_requests(agent: AgentProcess) -> None:
    """Hundreds of connections that ask, or say nothing at all: control commands are answered as before."""
    idle = [await asyncio.open_connection("127.0.0.1", agent.api) for _ in range(150)]
    before, began_at, answers, slowest = _resident_mib(agent), time.monotonic(), 0, 0.0

    def going_on() -> bool:
        took = time.monotonic() - began_at
        return took < 2.0 or (answers < 40 and took < 15.0)

    async def ask() -> None:
        nonlocal answers
        while going_on():
            answers += await agent.get("/v1/status") is not None

    asking = [asyncio.create_task(ask()) for _ in range(40)]
    while going_on():
        began = time.monotonic()
        await agent.say("V")
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.02)
    await asyncio.gather(*asking)
    for _, writer in idle:
        writer.close()
    grown = _resident_mib(agent) - before
    print(f"{answers} requests answered; the slowest command took {slowest * 1000:.0f} ms; {grown} MiB more")
    assert answers >= 40 and slowest < 3.0 and grown < 100


async def test_the_agent_keeps_no_capability(agent: AgentProcess) -> None:
    assert agent._popen is not None
    threads = list(Path(f"/proc/{agent._popen.pid}/task").iterdir())
    assert len(threads) > 1  # the journal's, at least
    for thread in threads:
        status = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines() if ":\t" in line)
        held = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff")}
        assert held == {"CapInh": 0, "CapPrm": 0, "CapEff": 0} and status["NoNewPrivs"] == "1", status["Name"]
        if os.geteuid() == 0:
            assert int(status["CapBnd"], 16) == 0
    # It works on: new calls, with ports of their own, and the journal.
    assert (await agent.say("Uc8 later 127.0.0.1 6000 A")).split()[0].isdigit()
    await agent.until(lambda s: s["journal_pending"] == 0 and s["journal_failures"] == 0)


def test_keep_only_keeps_what_is_asked_for() -> None:
    """In a process of its own: what is given up does not come back."""
    if os.geteuid() != 0:
        pytest.skip("only root has capabilities to give up")
    code = "from shunt import privileges as p; p.keep_only((p.NET_ADMIN, p.BPF)); print(open('/proc/self/status').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "agent")}, check=True)
    effective = next(int(line.split()[1], 16) for line in done.stdout.splitlines() if line.startswith("CapEff"))
    held = next(int(line.split()[1], 16) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    assert effective == (1 << 12 | 1 << 39) & held


def _certificates(folder: Path) -> None:
    """An authority, and certificates by it for a server and a client; and a stranger's own."""
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    for name in ("authority", "stranger"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to load the softswitch's programs")
async def test_bf_runtime_over_tls(tmp_path: Path) -> None:
    """A client with a certificate of the authority is served; one in the clear and one with its own certificate are not."""
    _certificates(tmp_path)

    def files(name: str) -> dict[str, str]:
        return {"ca_file": str(tmp_path / "authority.pem"), "certificate_file": str(tmp_path / f"{name}.pem"), "key_file": str(tmp_path / f"{name}.key")}

    with Softswitch(listen="127.0.0.1:0", tls=files("server")) as softswitch:
        outcomes = {}
        for name, credentials in (("client", client_credentials(Tls(**files("client")))), ("stranger", client_credentials(Tls(**files("stranger")))), ("clear", None)):
            table = RelayTable(softswitch.target, client_id=99, credentials=credentials)
            await table.start()
            stop = time.monotonic() + (30 if name == "client" else 1.5)
            while not table.connected and time.monotonic() < stop:
                await asyncio.sleep(0.02)
            outcomes[name] = table.connected
            await table.close()
    assert outcomes == {"client": True, "stranger": False, "clear": False}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("softswitch: {interfaces: [eth0], tls: {ca_file: /a}}\n", "certificate_file and key_file"),
        ("builtin_relay: {addresses: [127.0.0.1]}\ndata_plane: {tls: {key_file: /a}}\n", "go together"),
        ("builtin_relay: {addresses: [127.0.0.1]}\njournal: {redis: 'redis://:secret@h:1/0'}\n", "redis_password_file"),
        ("builtin_relay: {addresses: [127.0.0.1]}\njournal: {redis: 'http://h'}\n", "redis://HOST:PORT"),
        ("builtin_relay: {addresses: [127.0.0.1]}\nstandby: {lease_ms: 500}\n", "journal.redis"),
        ("builtin_relay: {addresses: [127.0.0.1]}\njournal: {redis: 'redis://h:1/0', path: /x}\n", "keep one of them"),
    ],
)
def test_configurations_that_cannot_work_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        loads(text)
    assert any(says in problem.message for problem in refusal.value.problems), refusal.value.problems


async def test_draining(agent: AgentProcess) -> None:
    """New calls are refused with rtpproxy's own E99, the running one is served to its end, and the agent says when it is empty."""
    assert (await agent.say("Uc8 running 127.0.0.1 6000 A")).split()[0].isdigit()

    def shunt(*words: str) -> dict:
        command = [sys.executable, "-m", "shunt.cli.main", "drain", "--json", "--api", f"http://127.0.0.1:{agent.api}", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "agent")})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    state = await asyncio.to_thread(shunt, "calls")
    assert (state["stop"], state["calls"], state["empty"]) == ("calls", 1, False)
    assert await agent.say("Uc8 refused 127.0.0.1 6000 A") == b"E99"
    assert (await agent.say("Lc8 running 127.0.0.1 7000 A B")).split()[0].isdigit()
    waiting = asyncio.create_task(asyncio.to_thread(shunt, "--wait"))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await agent.say("D running A B")
    assert (await asyncio.wait_for(waiting, 10))["empty"] is True
    assert (await asyncio.to_thread(shunt, "nothing"))["stop"] is None
    assert (await agent.say("Uc8 again 127.0.0.1 6000 A")).split()[0].isdigit()
    assert (await agent.get())["limits"]["refused_draining"] == 1


async def test_a_web_page_cannot_drain(agent: AgentProcess) -> None:
    """A form on any page could send this POST; without the header it changes nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.api)
    writer.write(b"POST /v1/drain?stop=calls HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n")
    assert b" 403 " in (await reader.read()).split(b"\r\n")[0]
    writer.close()
    assert (await agent.get("/v1/drain"))["stop"] is None
