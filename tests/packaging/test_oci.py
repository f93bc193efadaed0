"""The images: built on a clean Debian, run as compose.yaml says on the lab's edge host, a SIPp call in the data plane, replaced under that call."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.capture import Capture, account
from tests.lab.processes import Edge, Process
from tests.lab.sipp import Sipp, register
from tests.lab.topology import BPF, LabError, Topology
from tests.packaging import test_deb
from tests.packaging.test_compose import COMPOSE

ROOT = Path(__file__).resolve().parents[2]
CLEAN = ROOT / "build/packaging/root"
PACKAGES = sorted((ROOT / "build").glob("shunt_*.deb"), key=lambda path: path.stat().st_mtime)
VERSION = "0test"
TALK_MS = 26_000  # the recording that SIPp plays has 24 s

# Only with it may limits be raised and the score of the OOM killer lowered; a machine that root shares may not give it.
_CAP_SYS_RESOURCE = 24
_RAISES_LIMITS = bool(int(re.findall(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)[0], 16) >> _CAP_SYS_RESOURCE & 1)

# crun runs nothing where control groups of both versions have controllers: there podman does not see those of version 2.
_UNIFIED = Path("/sys/fs/cgroup/unified")
_HYBRID = (_UNIFIED / "cgroup.controllers").exists() and (_UNIFIED / "cgroup.controllers").read_text().strip() != ""
PODMAN = ["unshare", "--mount", "sh", "-c", f'umount {_UNIFIED} && exec podman "$@"', "podman"] if _HYBRID else ["podman"]

pytestmark = [
    *test_deb.needs("OCI_TEST"),
    *(pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed") for name in ("buildah", "podman")),
]


class Store:
    """Images and containers of this test alone, apart from those of the machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        settings = folder / "storage.conf"
        settings.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n')
        engine = folder / "containers.conf"
        # Some machines let nobody make control groups; nothing here needs them.
        engine.write_text('[containers]\ncgroups = "disabled"\n[engine]\nevents_logger = "none"\ncgroup_manager = "cgroupfs"\n')
        self.env = {"CONTAINERS_STORAGE_CONF": str(settings), "CONTAINERS_CONF": str(engine), "BUILDAH_ISOLATION": "chroot"}

    def run(self, *argv: str) -> str:
        """Standard output. Raises AssertionError with what the command said."""
        done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | self.env)
        assert done.returncode == 0, f"{' '.join(argv)}: exit {done.returncode}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
        return done.stdout

    def build(self) -> None:
        working = self.run("buildah", "from", "scratch").strip()
        self.run("buildah", "add", "--quiet", working, str(CLEAN), "/")
        self.run("buildah", "commit", "--quiet", "--rm", working, "localhost/clean")
        self.run(str(ROOT / "packaging/oci/images.sh"), str(PACKAGES[-1]), VERSION, "--build-arg", "BASE=localhost/clean")

    def containers(self) -> list[str]:
        return self.run(*PODMAN, "ps", "--all", "--format", "{{.Names}}").split()

    def inspect(self, daemon: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self.run(*PODMAN, "image", "inspect", f"localhost/shunt-{daemon}:{VERSION}"))
        return found[0]

    def destroy(self) -> None:
        subprocess.run([*PODMAN, "rm", "--all", "--force", "--volumes"], env=os.environ | self.env, stdout=subprocess.DEVNULL)
        for mount in [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1].startswith(f"{self.folder}/")]:
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self.folder)


def _limits(given: dict[str, int]) -> list[str]:
    """podman's options for limits; it would raise the two that it sets by itself."""
    return [f"--ulimit={name}={_limit(name, value)}" for name, value in ({"nofile": 1048576, "nproc": 4096} | given).items()]


def _limit(name: str, value: int) -> str:
    """A limit for containers, soft and hard; where this machine lets nobody raise it, what this process has."""
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    allowed = value if _RAISES_LIMITS or hard == -1 or 0 <= value <= hard else hard
    return f"{allowed}:{allowed}"


def options(service: dict[str, Any], volumes: dict[str, str]) -> list[str]:
    """podman's options for a service of compose.yaml; volumes: what stands for its volumes and files, by their path in the container."""
    words = [f"--network={service['network_mode']}"]
    words += [f"--cap-drop={right}" for right in service.get("cap_drop", [])] + [f"--cap-add={right}" for right in service.get("cap_add", [])]
    words += [f"--security-opt={option.replace(':true', '')}" for option in service.get("security_opt", [])]
    words += _limits(service.get("ulimits", {}))
    words += [f"--oom-score-adj={service['oom_score_adj']}"] if "oom_score_adj" in service and _RAISES_LIMITS else []
    words += ["--read-only"] if service.get("read_only") else []
    for volume in service.get("volumes", []):
        source, target, *flags = re.sub(r"\$\{[^}]*\}", "", volume).split(":")
        words.append(f"--volume={':'.join([volumes.get(target, source), target, *flags])}")
    return words


class Containers(Edge):
    """The edge host whose daemons of Shunt are containers."""

    def __init__(self, topology: Topology, work: Path, store: Store) -> None:
        self.store, self.prefix = store, topology.prefix
        self.volumes = {"/etc/shunt/shunt.yaml": str(work / "shunt.yaml")}
        super().__init__(topology, work, "kamailio", "builtin")

    def _daemon(self, command: str, config: Path | None = None, name: str = "") -> Process:
        service = COMPOSE["services"][command]
        # Named volumes are made by podman, with the owners that the image has there.
        for volume in service["volumes"]:
            source, target = re.sub(r"\$\{[^}]*\}", "", volume).split(":")[:2]
            if "/" not in source:
                self.volumes[target] = f"{self.prefix}-{source}"
        argv = [*PODMAN, "run", "--rm", "--name", self.container(command), *options(service, self.volumes), f"localhost/shunt-{command}:{VERSION}"]
        return self._process(command, argv, self.store.env)

    def container(self, command: str) -> str:
        return f"{self.prefix}-{command}"

    def shunt_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().shunt_config()
        for section, key in (("data_plane", "target"), ("softswitch", "listen"), ("journal", "path")):
            del config[section][key]  # where they are by default
        del config["admin"], config["operator"], config["builtin_relay"]["socket_group"]
        config["journal"] = {"path": "/var/lib/shunt/journal.sqlite"}
        config["builtin_relay"]["listen"] = ["cunix:/run/shunt-relay/control.sock", "udp:127.0.0.1:22222"]
        return config

    def start(self) -> None:
        # As compose does; two containers that come at once would both make it.
        for volume in COMPOSE["volumes"]:
            self.store.run(*PODMAN, "volume", "create", f"{self.prefix}-{volume}")
        try:
            for process in (self.softswitch, self.relay, self.agent, self.operator):
                process.start()
            self.await_data_plane(90)
            self.start_sip_server()
        except LabError as error:
            logs = "\n".join(f"{process.name}: {process.tail()}" for process in (self.softswitch, self.relay, self.agent, self.operator))
            self.stop()
            raise LabError(f"{error}\n{logs}") from None
        except BaseException:
            self.stop()
            raise

    def ready(self, command: str) -> str:
        """What the image's own health check says; empty: it is ready."""
        check = self.store.inspect(command)["Healthcheck"]["Test"]
        # The user by number: its name is in files that a podman in another mount namespace does not see.
        done = subprocess.run([*PODMAN, "exec", "--user=917:917", self.container(command), *check[1:]], capture_output=True, text=True, env=os.environ | self.store.env)
        return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"

    def replace(self, *processes: Process) -> None:
        """As an upgrade does: the container goes, and a new one comes."""
        for process in processes:
            process.stop(20)
            process.start()
        self.await_data_plane(90)

    def stop(self) -> None:
        for process in (self.sip_server, self.operator, self.agent, self.relay, self.softswitch):
            process.stop(20)
        if self.pin_dir.exists():
            shutil.rmtree(self.pin_dir)
        self.store.run(*PODMAN, "volume", "rm", *(f"{self.prefix}-{volume}" for volume in COMPOSE["volumes"]))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if not (CLEAN / ".ready").exists() or not PACKAGES:
        pytest.skip("runs with OCI_TEST=1")
    made = Store(tmp_path_factory.mktemp("oci") / "store")
    try:
        made.build()
        yield made
    finally:
        made.destroy()


@pytest.mark.parametrize(("daemon", "user"), [("softswitch", "root:shunt"), ("relay", "shunt:shunt"), ("agent", "shunt:shunt"), ("operator", "shunt:shunt"), ("edge", "shunt:shunt")])
def test_an_image(store: Store, daemon: str, user: str) -> None:
    image = store.inspect(daemon)
    assert image["Config"]["User"] == user
    labels = image["Labels"]
    assert (labels["org.opencontainers.image.version"], labels["org.opencontainers.image.licenses"]) == (VERSION, "Apache-2.0")
    assert ("Healthcheck" in image) == (daemon in ("agent", "operator"))
    name = f"localhost/shunt-{daemon}:{VERSION}"
    within = [*PODMAN, "run", "--rm", "--network=none", *_limits({}), "--entrypoint=/bin/sh", name, "-c"]
    assert store.run(*within, "find /usr/lib/shunt -name '*.pyc'; command -v gcc cc make clang cargo pip; ls /context 2>/dev/null; true") == ""
    assert store.run(*within, f"test -x /usr/lib/shunt/bin/shunt-{daemon} || test {daemon} = operator; shunt --version").startswith("shunt ")


def test_a_call_through_containers(store: Store, tmp_path: Path) -> None:
    with Topology("oci") as topology:
        with Containers(topology, tmp_path, store) as edge:
            for command in ("agent", "operator"):
                said = edge.ready(command)
                assert said == "", f"{command}: {said}"
            captures = [Capture(topology, tmp_path, host) for host in ("caller", "callee")]
            for capture in captures:
                capture.start()
            register(topology, tmp_path, "callee", "callee", 5070)
            common = {"sip_port": 5070, "media_port": 6000, "calls": 1, "talk_ms": TALK_MS}
            callee = Sipp(topology, tmp_path, "callee", "uas_answer", **common).start()
            caller = Sipp(topology, tmp_path, "caller", "uac_call", user="callee", rate=1, **common).start()
            _await(lambda: edge.status()["streams"].get("offloaded", 0) >= 2, 30, "both streams of the call are offloaded", edge)

            # An upgrade: programs and entries stay in the kernel, the call in the journal.
            edge.replace(edge.softswitch, edge.agent)
            _await(lambda: edge.status()["calls"] == 1 and edge.status()["streams"].get("offloaded", 0) >= 2, 30, "the call is found again", edge)
            caller.finish(90)
            callee.finish()
            assert (caller.counts().succeeded, caller.counts().failed) == (1, 0)
            _await(lambda: edge.status()["data_plane"]["entries"] == 0, 15, "no entry is left after the BYE", edge)
            for capture in captures:
                capture.stop()
            _, packets = account(captures)
            assert packets.lost == 0 and packets.sent > 2000, f"{packets.lost} of {packets.sent} lost"
            # The rest came before the call was learned, or refreshes the relay's sessions.
            assert packets.offloaded > 0.97 * packets.received, f"{packets.offloaded} of {packets.received} in the data plane"
        assert topology.pids() == [] and not (BPF / topology.prefix).exists()
        assert store.containers() == []


def _await(condition: Any, seconds: float, meaning: str, edge: Containers) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except (LabError, KeyError, TypeError):
            pass  # the operator daemon has no agent for a moment
        time.sleep(0.1)
    raise AssertionError(f"{meaning}: not within {seconds} s: {edge.status()}\n{edge.agent.tail()}")
