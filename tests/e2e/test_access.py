"""Who may use the SIP server as its shipped configuration has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.processes import Edge
from tests.lab.sipp import Sipp, register
from tests.lab.topology import EDGE_IP, LabError, Topology

pytestmark = [pytest.mark.e2e, pytest.mark.netns]


def _register(topology: Topology, work: Path, user: str, name: str, password: str) -> None:
    extra = ("-key", "contact_port", "5071", "-au", name, "-ap", password)
    Sipp(topology, work, "callee", "register_password", sip_port=5900, media_port=31900, user=user, calls=1, extra=extra).start().finish(10)


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


def test_strangers_are_refused(parts: tuple[str, str], tmp_path: Path) -> None:
    """Without passwords only customers' networks and the trunk may register or call."""

    class Strangers(Edge):
        """Nobody's network is a customer's."""

        def sip_server_config(self) -> str:
            return super().sip_server_config().replace("198.18.0.0/16", "192.0.2.0/24")

    with Topology("e2e") as topology, Strangers(topology, tmp_path, *parts, data_plane=False):
        with pytest.raises(LabError, match="403"):
            register(topology, tmp_path, "callee", "bob", 5071)
        caller = Sipp(topology, tmp_path, "caller", "uac_call", sip_port=5080, media_port=6000, user="0123", calls=1).start()
        with pytest.raises(LabError, match="403"):
            caller.finish(10)
