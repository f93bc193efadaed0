"""A pair behind a real SIP server that knows both: the one in charge is killed in mid-call, and nobody notices."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.calls import Lab, place
from tests.lab.processes import API_PORT, CONTROL_PORT, RELAY_PORT, Edge
from tests.lab.redis import RedisServer
from tests.lab.topology import LabError, Topology

pytestmark = [pytest.mark.e2e, pytest.mark.netns]

OTHER_CONTROL, OTHER_API = 22231, 8078


class PairEdge(Edge):
    """The edge host with two agents on one Redis; the SIP server has both in one set."""

    def __init__(self, topology: Topology, work: Path, sip_server: str, relay: str) -> None:
        super().__init__(topology, work, sip_server, relay)
        self.redis = RedisServer(topology, work)
        self.other_config = self.work / "other.yaml"
        self.other_admin = self.admin.with_name(f"{topology.prefix}-other-admin.sock")
        self.other, self.other_operator = (self._daemon(name, self.other_config, f"other-{name}") for name in ("agent", "operator"))

    def shunt_config(self) -> dict:
        return super().shunt_config() | {"journal": {"redis": self.redis.url}}

    def start_agent(self) -> None:
        if not self.redis.process.alive:
            self.redis.start()
        super().start_agent()
        mine = self.shunt_config()
        mine["control"] = mine["control"] | {"listen": [f"udp:127.0.0.1:{OTHER_CONTROL}"]}
        mine["api"] = {"listen": f"127.0.0.1:{OTHER_API}"}
        mine["admin"] = mine["admin"] | {"socket": str(self.other_admin), "events": str(self.work / "other-events")}
        mine["operator"] = {"state_dir": str(self.work / "other-operator")}
        mine.pop("hep", None)
        self.other_config.write_text(yaml.safe_dump(mine))
        self._await_role(API_PORT, "active")
        self.other.start().await_unix(self.other_admin)
        self.other_operator.start().await_listening("tcp", OTHER_API)
        self._await_role(OTHER_API, "standby")

    def _await_role(self, port: int, role: str) -> dict:
        deadline = time.monotonic() + 60
        while True:
            status = self.status_of(port)
            if status is not None and status["role"] == role:
                return status
            assert time.monotonic() < deadline, f"port {port}: {status}"
            time.sleep(0.05)

    def status_of(self, port: int) -> dict | None:
        try:
            return self.get("/v1/status", port)
        except LabError:
            return None

    def sip_server_config(self) -> str:
        text = super().sip_server_config()
        both = f'"udp:127.0.0.1:{CONTROL_PORT}=1 udp:127.0.0.1:{OTHER_CONTROL}=1"'
        text = re.sub(r'modparam\("rtpproxy", "rtpproxy_sock", "1 == [^"]*"\)\n', "", text)
        text, count = re.subn(r'(modparam\("rtpproxy", "rtpproxy_sock", )"[^"]*"', lambda found: found.group(1) + both, text)
        assert count == 1 and str(RELAY_PORT) not in both
        text = text.replace("#!define WITH_BACKUP_RELAY", "##!define WITH_BACKUP_RELAY", 1) if "##!define WITH_BACKUP_RELAY" not in text else text
        for name, value in (("rtpproxy_timeout", '"0.5"'), ("rtpproxy_retr", "5" if self.sip_server_name == "opensips" else "3")):
            text = re.sub(rf'(modparam\("rtpproxy", "{name}", )[^)]*\)', lambda found, value=value: f"{found.group(1)}{value})", text)
        return text

    def stop(self) -> None:
        self.other_operator.stop()
        self.other.stop()
        super().stop()
        self.redis.stop()


@pytest.fixture
def pair_lab(parts: tuple[str, str], tmp_path: Path) -> Iterator[tuple[Lab, PairEdge]]:
    with Topology("pair") as topology, PairEdge(topology, tmp_path, *parts) as edge:
        yield Lab(topology, edge, tmp_path), edge


def test_the_agent_in_charge_is_killed(pair_lab: tuple[Lab, PairEdge]) -> None:
    """No packet is lost, the BYE clears the call by way of the other agent, and the next call is offloaded by it."""
    lab, edge = pair_lab

    def during() -> None:
        edge.agent.kill()

    outcome = place(lab, "uac_call", "uas_answer", talk_ms=4000, during=during)
    assert outcome.packets.lost == 0 and outcome.call.how == "BYE by caller"
    status = edge._await_role(OTHER_API, "active")
    deadline = time.monotonic() + 60
    while status["calls"] or status["data_plane"]["entries"]:
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
        status = edge.status_of(OTHER_API) or status
    # The agent that was killed is not started again: everything goes by way of the other.
    after = place(lab, "uac_call", "uas_answer", talk_ms=1500)
    assert after.packets.lost == 0 and after.packets.offloaded > 0
