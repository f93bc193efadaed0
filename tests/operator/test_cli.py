"""The `shunt` command as a process of its own, against a real API server over a stand-in view."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shunt.calls.reasons import REASONS
from tests.bfrt.traffic import namespace
from tests.operator import stand_in
from tests.operator.stand_in import HOSTILE_CALL_ID, ODD_CALL_ID, StandIn
from tests.softswitch.process import unpin

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("agent", "relay", "operator", "softswitch", "check-config", "doctor", "calls", "find", "why", "trace", "status", "reasons")
GOOD = "builtin_relay: {addresses: [127.0.0.1]}\n"


def environment(**more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SHUNT_")}
    return env | {"PYTHONPATH": str(ROOT / "operator")} | more


async def shunt(*args: str, **env: str) -> tuple[int, str, str]:
    """Run the command; exit code, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "shunt.cli.main", *args, env=environment(**env), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


@pytest.fixture(params=["tcp", "unix"])
async def agent(request, tmp_path):
    view = StandIn()
    api = stand_in.server(view, "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/api.sock")
    await api.start()
    view.url = str(api.listen) if api.listen.path else f"http://{api.listen}"
    yield view
    await api.close()


@pytest.fixture
async def token_agent():
    view = StandIn()
    api = stand_in.server(view, "127.0.0.1:0", "correct horse")
    await api.start()
    view.url = f"http://{api.listen}"
    yield view
    await api.close()


async def test_every_command_has_help_with_the_exit_codes():
    answers = await asyncio.gather(shunt("--help"), *(shunt(command, "--help") for command in COMMANDS))
    for name, (code, out, err) in zip(("shunt", *COMMANDS), answers):
        assert (code, err) == (0, ""), name
        assert "Exit codes: 0 all is well; 1 a problem, or not found; 2 wrong usage; 3" in " ".join(out.split()), name
    assert all(command in answers[0][1] for command in COMMANDS)


async def test_calls_in_plain_text(agent):
    code, out, err = await shunt("calls", "--api", agent.url)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split() == ["CALL-ID", "AGE", "RELAY", "RTP", "STREAMS", "REASONS", "PACKETS", "LOSS", "%", "JITTER", "MS", "MOS"]
    assert lines[1].startswith("first@x") and "2 offloaded" in lines[1] and lines[1].split()[-4:] == ["1200", "0.0", "2", "4.35"]
    assert "1 offloaded, 1 learning" in lines[2] and "waiting-for-media" in lines[2]
    assert "waiting-for-media (one-way: no media from the callee)" in lines[2]
    assert lines[-1] == "4 calls"
    code, out, _ = await shunt("calls", "--problems", "--json", "--api", agent.url)
    assert (code, [call["call_id"] for call in json.loads(out)["calls"]]) == (1, ["second@x"])


async def test_calls_are_found_in_plain_text(agent):
    code, out, err = await shunt("find", "4930", "--api", agent.url)
    lines = out.splitlines()
    assert (code, err, lines[-1]) == (0, "", "2 calls")
    assert lines[1].split() == ["2026-11-21T10:00:00", "1", "min", "05", "s", "sip:4930123@example.net", "sip:bob@example.net", "200,", "caller", "hung", "up", "gone@x"]
    assert lines[2].split() == ["2026-11-21T10:02:00", "ringing", "sip:4930456@example.net", "-", "-", "first@x"]
    code, out, _ = await shunt("find", "--over", "--since", "2h", "--json", SHUNT_API=agent.url)
    assert code == 0 and [call["call_id"] for call in json.loads(out)["calls"]] == ["gone@x"]
    assert (await shunt("find", "nobody", "--api", agent.url))[:2] == (1, "0 calls\n")


async def test_json_is_the_apis(agent):
    code, out, _ = await shunt("calls", "--json", "--state", "suspended", SHUNT_API=agent.url)
    assert (code, json.loads(out)["calls"]) == (0, [agent.by_id[ODD_CALL_ID]])
    code, out, _ = await shunt("status", "--json", "--api", agent.url)
    assert (code, json.loads(out)) == (0, await agent.status())
    code, out, _ = await shunt("why", "--json", "--api", agent.url, "first@x")
    assert (code, json.loads(out)["age_s"]) == (0, 76.0)
    code, out, _ = await shunt("trace", "--json", "--api", agent.url, "192.0.2.9:4000", "192.0.2.1:35000")
    assert (code, json.loads(out)["data_plane"]["verdict"]) == (0, "redirect")


async def test_more_calls_than_a_page_are_all_listed(agent):
    first = agent.by_id["first@x"]
    agent.by_id = {f"c{n}": first | {"call_id": f"c{n}"} for n in range(2345)}
    code, out, _ = await shunt("calls", "--json", "--api", agent.url)
    assert code == 0
    assert {c["call_id"] for c in json.loads(out)["calls"]} == set(agent.by_id)


async def test_why_explains_in_plain_words(agent):
    code, out, err = await shunt("why", "second@x", "--api", agent.url)
    assert (code, err) == (0, "")
    for words in (
        "Call second@x on relay r1, begun 2026-11-21T10:00:02+00:00, 1 min 16 s ago",
        "caller: signalled 10.0.0.9:6000; sends from 198.51.100.9:41000 (not as signalled); told to send to relay port 192.0.2.1:35002; 2 packets came there from other sources",
        "callee: signalled 203.0.113.5:7000; no source latched yet",
        "caller->callee RTP: offloaded for 12.5 s, reason offloaded",
        "entry: 198.51.100.9:41000 > 192.0.2.1:35002 leaves as 192.0.2.1:35000 > 203.0.113.5:7000",
        "data plane: 600 packets, 103.2 kB, the last 18 ms ago",
        "quality: 3 lost (0.50 %), 1 reordered, 0 duplicates, jitter 0.75 ms",
        "callee->caller RTP: learning for 12.5 s, reason waiting-for-media",
        REASONS["waiting-for-media"],
    ):
        assert words in out


async def test_why_answers_from_the_agent_when_the_data_plane_is_dead(agent):
    agent.unavailable = True
    code, out, err = await shunt("why", "first@x", "--api", agent.url)
    assert code == 0 and "Call first@x" in out
    assert err == "shunt: counters are not fresh: data plane: 127.0.0.1:50052 does not answer\n"


@pytest.mark.parametrize("call_id", [ODD_CALL_ID, HOSTILE_CALL_ID])
async def test_any_call_id_works_and_none_reaches_the_terminal_raw(agent, call_id):
    code, out, _ = await shunt("why", call_id, "--api", agent.url, PYTHONIOENCODING="ascii")
    assert code == 0 and "\x1b" not in out
    code, out, _ = await shunt("calls", "--api", agent.url)
    assert "evil\\x1b[2J[bold]x" in out and "\x1b" not in out


async def test_status_and_trace_in_plain_text(agent):
    code, out, _ = await shunt("status", "--api", agent.url)
    assert code == 0
    assert "Shunt 0.1.0, up 1 h 01 min, control on udp:127.0.0.1:22221" in out
    assert "90000 in the data plane, 10 in relays (99.99 % in the data plane)" in out
    assert "Data plane: 127.0.0.1:50052 (softswitch), connected, 14 of 262144 entries" in out
    assert out.splitlines()[-1].split() == ["r1", "udp:127.0.0.1:22222", "up", "4", "20040107", "ttl"]
    code, out, _ = await shunt("trace", "192.0.2.9:4000", "192.0.2.1:35000", "--api", agent.url)
    assert (code, out.splitlines()) == (
        0,
        [
            "192.0.2.9:4000 > 192.0.2.1:35000: redirect (entry found)",
            "leaves as 192.0.2.1:35000 > 192.0.2.9:4000 through eth0",
            "This relay port is for the caller's RTP of call first@x, media 1: offloaded, reason offloaded; expected from 192.0.2.9:4000",
        ],
    )
    for more in ((), ("--json",)):
        code, out, err = await shunt("trace", "192.0.2.9:1", "192.0.2.1:35000", "--api", agent.url, *more)
        assert (code, err) == (1, "shunt: the data plane could not be asked: none is configured, or it is not connected (`shunt status`)\n")
    assert json.loads(out)["data_plane"] is None


async def test_problems_are_in_the_exit_code(agent):
    """`calls --problems` with a find, `status` with a line of "!!"; a state that is none is wrong usage, with the list of states."""
    assert (await shunt("calls", "--problems", "--api", agent.url))[0] == 1
    assert (await shunt("calls", "--api", agent.url))[0] == 0
    agent.found_problems = [{"code": "relay-down", "message": "relay r1 does not answer", "since_s": 3}]
    code, out, _ = await shunt("status", "--api", agent.url)
    assert (code, out.splitlines()[0]) == (1, "!! relay r1 does not answer")
    assert (await shunt("status", "--json", "--api", agent.url))[0] == 1
    for option in ("--state", "--reason"):
        code, _, err = await shunt("calls", option, "bogus", "--api", agent.url)
        assert code == 2 and ("allocated" if option == "--state" else "verifying-source") in err, err


async def test_conferences_that_are_not_configured(agent):
    code, _, err = await shunt("conference", "list", "--api", agent.url)
    assert (code, err) == (1, "shunt: conferences are not configured (section conference)\n")


async def test_exit_codes(agent):
    cases = {
        ("why", "nobody"): (1, "no call with Call-ID 'nobody'"),
        ("trace", "192.0.2.9", "192.0.2.1:35000"): (2, "SRC: '192.0.2.9' is not ADDRESS:PORT"),
        ("trace", "192.0.2.9:1", "[2001:db8::1]:35000"): (2, "no packet is both"),
        ("why",): (2, "Missing argument"),
        ("status", "--api", "ftp://x"): (2, "is not http://HOST:PORT"),
        ("status", "--api", "http://127.0.0.1:1"): (3, "no agent at http://127.0.0.1:1: Connection refused"),
        ("status", "--api", "unix:/nonexistent/x"): (3, "no agent at unix:/nonexistent/x: No such file"),
        ("status", "--token-file", "/nonexistent/x"): (1, "/nonexistent/x: No such file"),
        ("no-such-command",): (2, "No such command"),
    }
    answers = await asyncio.gather(*(shunt(*args, SHUNT_API=agent.url) for args in cases))
    for (args, (expected, says)), (code, out, err) in zip(cases.items(), answers):
        assert (code, out) == (expected, ""), (args, err)
        assert says in err and "Traceback" not in err
    agent.unavailable = True
    code, _, err = await shunt("trace", "192.0.2.9:1", "192.0.2.1:35000", "--api", agent.url)
    assert (code, err) == (1, "shunt: data plane: 127.0.0.1:50052 does not answer\n")


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b""])
async def test_another_service_on_the_port_is_said(answer):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        await reader.read(1)
        writer.close()

    other = await asyncio.start_server(serve, "127.0.0.1", 0)
    code, _, err = await shunt("status", "--api", f"127.0.0.1:{other.sockets[0].getsockname()[1]}")
    other.close()
    assert code == 3 and "shunt: " in err and "Traceback" not in err


async def test_token_from_environment_and_file(token_agent, tmp_path):
    code, _, err = await shunt("status", "--api", token_agent.url)
    assert (code, err) == (1, "shunt: a bearer token is needed (header Authorization) (set SHUNT_TOKEN or --token-file)\n")
    assert (await shunt("status", "--api", token_agent.url, SHUNT_TOKEN="correct horse"))[0] == 0
    (tmp_path / "token").write_text("correct horse\n")
    assert (await shunt("status", "--api", token_agent.url, "--token-file", str(tmp_path / "token")))[0] == 0


async def test_watch_repeats_and_ends_on_interrupt(agent):
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "shunt.cli.main", "calls", "--watch", "--json", "--api", agent.url, env=environment(), stdout=asyncio.subprocess.PIPE)
    first = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
    del agent.by_id["first@x"]
    second = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
    assert (len(first["calls"]), len(second["calls"])) == (4, 3)
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_on_a_terminal_there_is_a_table_without_markup_from_the_network(agent):
    terminal, child = pty.openpty()
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "shunt.cli.main", "calls", "--api", agent.url, env=environment(TERM="xterm", COLUMNS="200"), stdout=child)
    os.close(child)
    assert await asyncio.wait_for(process.wait(), 60) == 0
    text = os.read(terminal, 65536).decode()
    os.close(terminal)
    assert "\x1b[1mCALL-ID" in text  # bold heading: it took the terminal for one
    assert "evil\\x1b[2J[bold]x" in text


async def test_reasons_lists_all(tmp_path):
    code, out, _ = await shunt("reasons")
    assert code == 0 and all(name in out and text in out for name, text in REASONS.items())
    code, out, _ = await shunt("reasons", "--json")
    answer = json.loads(out)
    assert answer["reasons"] == REASONS
    assert set(answer["states"]) == {"allocated", "learning", "offloaded", "suspended", "released"}


async def test_check_config(tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD + "api: {token: secret-token}\n")
    bad.write_text("relays:\n  - {name: a, socket: nowhere}\nlog: {level: loud}\n")
    assert (await shunt("check-config", str(good)))[:2] == (0, f"{good}: no errors\n")
    code, out, err = await shunt("check-config", str(bad))
    assert (code, out) == (1, "")
    assert err.splitlines()[0].startswith(f"{bad}:2:23: relays.0.socket: 'nowhere' is not udp:")
    assert err.splitlines()[1].startswith(f"{bad}:3:14: log.level: ")
    code, out, _ = await shunt("check-config", "--json", str(bad))
    answer = json.loads(out)
    assert (code, answer["valid"], [(e["line"], e["column"], e["key"]) for e in answer["errors"]]) == (1, False, [(2, 23, "relays.0.socket"), (3, 14, "log.level")])
    code, out, _ = await shunt("check-config", "--json", str(good))
    assert (code, json.loads(out)["valid"], "secret-token" in out) == (0, True, False)
    assert json.loads(out)["config"]["builtin_relay"]["ports"] == "35000-65000"
    good.write_text(GOOD + "hep: {listen: 'udp:127.0.0.1:9060'}\n")
    code, out, _ = await shunt("check-config", "--json", str(good))
    assert json.loads(out)["config"]["hep"]["allow"] == ["0.0.0.0/0", "::/0"], "a daemon cannot know that the key is missing"
    for arguments in (("check-config", str(tmp_path)), ("check-config", str(tmp_path / "none.yaml"))):
        code, _, err = await shunt(*arguments)
        assert code == 1 and "Traceback" not in err and str(tmp_path) in err


async def test_check_config_warns_of_what_is_no_error(tmp_path):
    file = tmp_path / "shunt.yaml"
    file.write_text(GOOD + "data_plane: {target: 'unix:/run/other.sock', cpu_interface: no-cpu0}\nsoftswitch: {interfaces: [lo, no-such0]}\n")
    code, out, err = await shunt("check-config", str(file))
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        f"{file}:2:22: warning: data_plane.target: unix:/run/other.sock is not the softswitch of this file, which listens on unix:/run/shunt-softswitch/bfrt.sock",
        f"{file}:2:61: data_plane.cpu_interface: there is no interface no-cpu0 on this host",
        f"{file}:3:31: softswitch.interfaces.1: there is no interface no-such0 on this host",
        f"shunt: {file} does not fit this host",
    ]
    code, out, err = await shunt("check-config", "--json", str(file))
    answer = json.loads(out)
    assert (code, answer["valid"], err) == (1, False, "")
    assert [(w["line"], w["column"], w["key"]) for w in answer["warnings"]] == [(2, 22, "data_plane.target")]
    assert [(e["line"], e["column"], e["key"]) for e in answer["errors"]] == [(2, 61, "data_plane.cpu_interface"), (3, 31, "softswitch.interfaces.1")]
    file.write_text(GOOD + "control: {listen: ['udp:203.0.113.10:22221']}\n")
    code, _, err = await shunt("check-config", str(file))
    assert code == 0 and "control.allow has loopback only" in err, err
    file.write_text("builtin_relay:\n\taddresses: [127.0.0.1]\n")
    code, _, err = await shunt("check-config", str(file))
    assert code == 1 and ":2:1: a tab: YAML indents with spaces only" in err, err
    programs = "softswitch: {interfaces: [lo], programs: [relay, b]}\n"
    for program, warning in (
        ("c", "data_plane.program: c is not served by the softswitch of this file, which has relay, b"),
        ("b", "conference: the softswitch of this file serves conferences to program relay, not to b"),
        ("relay", None),
    ):
        file.write_text(f"{GOOD}{programs}data_plane: {{program: {program}}}\nconference: {{address: 203.0.113.9}}\n")
        code, _, err = await shunt("check-config", str(file))
        assert code == 0 and [line.partition(" warning: ")[2] for line in err.splitlines()] == ([warning] if warning else []), err
    # Daemons are started as before: they have words of their own for what is missing.
    file.write_text(GOOD)
    code, out, _ = await shunt("check-config", "--json", str(file))
    assert (code, json.loads(out)["warnings"]) == (0, [])


async def test_doctor_takes_a_configuration(tmp_path):
    code, _, err = await shunt("doctor")
    assert code == 2 and "--config" in err
    file = tmp_path / "shunt.yaml"
    code, out, err = await shunt("doctor", "-c", str(file))
    assert (code, out) == (1, "") and err == f"shunt: {file}: No such file or directory\n"
    file.write_text("relays: nowhere\n")
    code, out, err = await shunt("doctor", "-c", str(file))
    assert (code, out) == (1, "") and err.startswith(f"{file}:1:9: relays: ")


# `shunt operator` with a service of the test's own in place of the real one: what is tested is the command
# (arguments, signals, messages), not the service.
SERVICE = """\
import asyncio, os, sys, types
async def run(config):
    print("ready", config.builtin_relay.addresses[0], flush=True)
    if os.environ.get("FAIL"):
        raise OSError(98, "control socket udp:127.0.0.1:22221: Address already in use")
    try:
        await asyncio.Event().wait()
    finally:
        print("orderly end", flush=True)
module = sys.modules["shunt.operator.daemon"] = types.ModuleType("shunt.operator.daemon")
module.run = run
from shunt.cli.main import main
main()
"""


async def service(*args: str, **env: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", SERVICE, *args, env=environment(**env), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_operator_ends_in_order_on_a_signal(tmp_path, number):
    (tmp_path / "c.yaml").write_text(GOOD)
    process = await service("operator", "-c", str(tmp_path / "c.yaml"))
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"ready 127.0.0.1\n"
    process.send_signal(number)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out, err) == (0, b"orderly end\n", b"")


async def test_operator_says_what_the_system_refused(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(GOOD)
    process = await service("operator", "-c", str(file), FAIL="1")
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    assert err == b"shunt: operator: control socket udp:127.0.0.1:22221: Address already in use\n"


async def test_daemons_say_what_a_file_lacks(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("softswitch: {interfaces: [eth0]}\n")
    assert await shunt("agent", "-c", str(file)) == (1, "", f"shunt: {file} names neither a relay nor conferences: the agent needs relays, builtin_relay or conference\n")
    assert await shunt("relay", "-c", str(file)) == (1, "", f"shunt: {file} has no section builtin_relay\n")
    assert [(await shunt(command))[0] for command in ("agent", "relay", "operator")] == [2, 2, 2]


async def softswitch(home: str, *args: str) -> tuple[asyncio.subprocess.Process, str]:
    """`shunt softswitch` in a network namespace, and its READY line."""
    # Not `ip netns exec`: that would also give it a /sys of its own, whose pins end with it.
    command = ["nsenter", f"--net=/run/netns/{home}", sys.executable, "-m", "shunt.cli.main", "softswitch", *args]
    process = await asyncio.create_subprocess_exec(*command, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
    if not line.startswith("READY"):
        pytest.fail(f"not ready: {line!r}; {(await process.communicate())[1].decode()}")
    return process, line


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_softswitch_takes_the_file_and_lets_options_win(tmp_path):
    """The file's mode and folder of pins, the options' interfaces and capacity; the pins stay until --unload, which leaves nothing in the kernel."""
    file, pins = tmp_path / "c.yaml", tmp_path / "pins"
    pins.mkdir()
    file.write_text(f"softswitch: {{interfaces: [eth0], listen: [127.0.0.1:50052], capacity: 1000, mode: generic, pin_dir: {pins}}}\n")
    with namespace() as home:
        try:
            process, ready = await softswitch(home, "-c", str(file), "--interface", "in0", "--interface", "out0", "--capacity", "2000")
            assert "generic XDP on in0, out0;" in ready and "BF Runtime on 127.0.0.1:50052;" in ready and "0 of 2000 entries" in ready
            process.send_signal(signal.SIGTERM)
            out, _ = await asyncio.wait_for(process.communicate(), 60)
            assert (process.returncode, out) == (0, b"") and list(pins.iterdir())
            # Found by itself where no folder is named, in a mount namespace that has no other softswitch's.
            others = ["unshare", "--mount", "sh", "-c", 'for one in $(awk \'$3 == "bpf" {print $2}\' /proc/mounts); do [ $one = $1 ] || umount --lazy $one; done; shift; exec "$@"', "sh", str(pins)]
            command = ["nsenter", f"--net=/run/netns/{home}", *others, sys.executable, "-m", "shunt.cli.main", "softswitch", "--unload"]
            asked = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
            assert asked.returncode == 2 and f"entries in {pins} are removed. Nothing was done" in asked.stderr and list(pins.iterdir())
            process = subprocess.run([*command, "--yes"], env=environment(), capture_output=True, text=True)
            assert (process.returncode, process.stdout) == (0, "") and f"of {pins} are out of the kernel" in process.stderr, process.stderr
            assert not pins.exists() or not [path for path in pins.iterdir() if not path.name.endswith(".debug")], "the file system's own files are left"
        finally:
            unpin(pins)


async def test_softswitch_usage_errors():
    cases = {
        ("softswitch",): "give -c FILE or --interface",
        ("softswitch", "--unload", "--interface", "eth0", "--capacity", "0"): "0 is not in the range",
        ("softswitch", "--interface", "a/b"): "'a/b' is not the name of a network interface",
        ("softswitch", "--interface", "eth0", "--listen", "nowhere"): "listen: 'nowhere' is not of the form ADDRESS:PORT or unix:/PATH",
        ("softswitch", "--interface", "eth0", "--capacity", "0"): "0 is not in the range",
    }
    for (args, says), (code, _, err) in zip(cases.items(), await asyncio.gather(*(shunt(*args) for args in cases))):
        assert code == 2 and says in err, (args, err)


def test_asking_starts_fast_because_services_are_not_imported():
    probe = "import sys, shunt.cli.main, shunt.cli.show; print(*sorted({m.split('.')[0] for m in sys.modules} & {'grpc', 'pydantic', 'aiohttp', 'rich', 'yaml', 'aiosipua', 'pyroute2', 'numpy'}))"
    import subprocess

    done = subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == ""


async def test_silent_agent_is_given_up(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        from shunt.cli import client

        monkeypatch.setattr(client, "_TIMEOUT_S", 0.1)
        with pytest.raises(client.Failure, match="no answer from the agent") as caught:
            await asyncio.to_thread(client.Client(f"127.0.0.1:{silent.getsockname()[1]}").get, "/v1/status")
        assert caught.value.exit_code == 3


def test_a_call_that_moves_to_the_next_page_is_listed_once(monkeypatch):
    from shunt.cli.client import Client

    pages = {0: {"calls": [{"call_id": "a"}, {"call_id": "b"}], "next": 2}, 2: {"calls": [{"call_id": "b"}, {"call_id": "c"}], "next": None}}
    monkeypatch.setattr(Client, "get", lambda self, path, **query: pages[query["offset"]])
    assert [c["call_id"] for c in Client("127.0.0.1:1").calls(None, None)] == ["a", "b", "c"]
