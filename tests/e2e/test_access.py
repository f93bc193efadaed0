"""Who may use the SIP server as its shipped configuration has it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from tests.lab.processes import Edge, open_socket
from tests.lab.sipp import Sipp, register
from tests.lab.topology import CALLEE_IP, EDGE_IP, LabError, Topology

pytestmark = [pytest.mark.e2e, pytest.mark.netns]


def _register(topology: Topology, work: Path, user: str, name: str, password: str) -> None:
    extra = ("-key", "contact_port", "5071", "-au", name, "-ap", password)
    Sipp(topology, work, "callee", "register_password", sip_port=5900, media_port=31900, user=user, calls=1, extra=extra).start().finish()


def test_passwords(parts: tuple[str, str], tmp_path: Path) -> None:
    """With passwords on, only the right one registers a user, and only under the user's own name."""
    folder = tmp_path / "dbtext"
    folder.mkdir()
    folder.joinpath("version").write_text(f"table_name(string) table_version(int)\nsubscriber:{8 if parts[0] == 'opensips' else 7}\n")
    folder.joinpath("subscriber").write_text(f"id(int,auto) username(string) domain(string) password(string)\n1:bob:{EDGE_IP}:secret\n")
    with Topology("e2e") as topology, Edge(topology, tmp_path, *parts, data_plane=False, passwords=folder):
        _register(topology, tmp_path, "bob", "bob", "secret")
        for user, password, refusal in (("bob", "wrong", "401"), ("alice", "secret", "403")):
            with pytest.raises(LabError, match=refusal):
                _register(topology, tmp_path, user, "bob", password)
        with pytest.raises(LabError, match="401"):
            register(topology, tmp_path, "callee", "bob", 5071)


class Strangers(Edge):
    """Nobody's network is a customer's."""

    def sip_server_config(self) -> str:
        return super().sip_server_config().replace("198.18.0.0/16", "192.0.2.0/24")


class TwoCalls(Edge):
    """An address may have two calls at once."""

    def sip_server_config(self) -> str:
        text = super().sip_server_config()
        assert "$var(most) = 5000;" in text
        return text.replace("$var(most) = 5000;", "$var(most) = 2;")


def test_strangers_are_refused(parts: tuple[str, str], tmp_path: Path) -> None:
    """Without passwords only customers' networks and the trunk may register or call."""

    with Topology("e2e") as topology, Strangers(topology, tmp_path, *parts, data_plane=False):
        with pytest.raises(LabError, match="403"):
            register(topology, tmp_path, "callee", "bob", 5071)
        caller = Sipp(topology, tmp_path, "caller", "uac_call", sip_port=5080, media_port=6000, user="0123", calls=1).start()
        with pytest.raises(LabError, match="403"):
            caller.finish()


def test_nobody_gets_in_with_a_dialog_of_his_own_making(parts: tuple[str, str], tmp_path: Path) -> None:
    """A To tag and a Route header do not make a dialog: 481, nothing for the trunk, no port of the relay."""
    with Topology("e2e") as topology, Strangers(topology, tmp_path, *parts, data_plane=False) as edge:
        trunk = open_socket(topology, "callee", socket.AF_INET, socket.SOCK_DGRAM)
        trunk.bind((CALLEE_IP, 5060))
        trunk.settimeout(0.5)
        try:
            for route in (";r=1", ";did=1.1;sides=conf;families=conf;since=2000000000;sig=0123456789abcdef0123456789abcdef"):
                extra = ("-key", "route", route, "-key", "trunk", f"{CALLEE_IP}:5060")
                Sipp(topology, tmp_path, "caller", "uac_stranger", sip_port=5080, media_port=6000, user="0123", calls=20, rate=50, extra=extra).start().finish()
            with pytest.raises(TimeoutError):
                trunk.recv(4096)
        finally:
            trunk.close()
        commands = edge.status()["commands"]
        assert not {"U", "L", "D", "offer", "answer", "delete"} & commands.keys(), commands
        assert edge.calls() == []


def test_an_address_has_no_more_calls_than_allowed(parts: tuple[str, str], tmp_path: Path) -> None:
    """Each call takes ports of the relay: the call beyond the limit is refused before it has any, and one that ends makes room."""
    with Topology("e2e") as topology, TwoCalls(topology, tmp_path, *parts, data_plane=False) as edge:
        register(topology, tmp_path, "callee", "bob", 5071)
        callee = Sipp(topology, tmp_path, "callee", "uas_answer", sip_port=5071, media_port=7000, calls=3, talk_ms=1000).start()
        talking = Sipp(topology, tmp_path, "caller", "uac_call", sip_port=5080, media_port=6000, user="bob", calls=2, talk_ms=8000).start()
        try:
            deadline = time.monotonic() + 60
            while len([view for view in edge.calls() if not view["ended"]]) < 2:
                assert time.monotonic() < deadline, f"two calls did not come up: {edge.calls()}"
                time.sleep(0.05)
            with pytest.raises(LabError, match="503"):
                Sipp(topology, tmp_path, "caller", "uac_call", sip_port=5082, media_port=6100, user="bob", calls=1, talk_ms=1000).start().finish()
            assert edge.status()["commands"]["offer" if parts[1] == "rtpengine" else "U"] == 2
            talking.finish()
            Sipp(topology, tmp_path, "caller", "uac_call", sip_port=5082, media_port=6100, user="bob", calls=1, talk_ms=1000).start().finish()
            callee.finish()
        finally:
            talking.stop()
            callee.stop()
