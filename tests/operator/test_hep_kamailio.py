"""The HEP listener behind a real SIP server: Kamailio's siptrace module, on loopback."""

from __future__ import annotations

import asyncio
import shutil
import socket

import pytest

from shunt.config.values import SocketAddress
from shunt.hep.listener import HepListener
from shunt.net import Endpoint
from tests.lab.ports import free_port
from tests.operator.test_hep import BYE, LOOPBACK, Seen

CONFIG = """\
#!KAMAILIO
debug=1
log_stderror=yes
children=1
disable_tcp=yes
auto_aliases=no
listen=udp:127.0.0.1:{sip}
loadmodule "sl.so"
loadmodule "pv.so"
loadmodule "siptrace.so"
modparam("siptrace", "duplicate_uri", "sip:127.0.0.1:{hep}")
modparam("siptrace", "hep_mode_on", 1)
modparam("siptrace", "hep_version", 3)
modparam("siptrace", "trace_to_database", 0)
modparam("siptrace", "trace_on", 1)
modparam("siptrace", "trace_init_mode", 1)
modparam("siptrace", "trace_mode", 1)
request_route {{ sl_send_reply("200", "OK"); exit; }}
"""


@pytest.mark.skipif(shutil.which("kamailio") is None, reason="needs kamailio on PATH (Debian package kamailio)")
async def test_a_bye_through_kamailio_is_seen_with_its_answer(tmp_path):
    seen = Seen()
    listener = HepListener(SocketAddress("udp", "127.0.0.1", 0), LOOPBACK, seen)
    await listener.start()
    sip_port = free_port()
    (tmp_path / "kamailio.cfg").write_text(CONFIG.format(sip=sip_port, hep=listener.listen.port))
    arguments = ("-DD", "-E", "-f", str(tmp_path / "kamailio.cfg"), "-Y", str(tmp_path))
    with (tmp_path / "log").open("wb") as log:
        server = await asyncio.create_subprocess_exec("kamailio", *arguments, stdout=log, stderr=log)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as phone:
            phone.bind(("127.0.0.1", 0))
            phone.connect(("127.0.0.1", sip_port))
            for _ in range(100):
                assert server.returncode is None, (tmp_path / "log").read_text()
                try:
                    phone.send(BYE)
                except ConnectionRefusedError:
                    pass  # the answer to the one before: Kamailio is not up yet
                if seen.all:
                    break
                await asyncio.sleep(0.1)
            await seen.wait_for(2)
            here = Endpoint.of(*phone.getsockname())
    finally:
        server.terminate()
        await asyncio.wait_for(server.wait(), 10)
        await listener.stop()
    there = Endpoint.of("127.0.0.1", sip_port)
    request, answer = seen.all[:2]
    assert (request.method, request.call_id, request.source, request.destination) == ("BYE", "f81d4fae-7dec@192.0.2.10", here, there)
    assert (request.from_tag, request.to_tag) == ("a73kszlfl", "1410948204")
    assert (answer.status, answer.cseq_method, answer.source, answer.destination) == (200, "BYE", there, here)
    assert listener.counters.malformed == 0
