"""Kernel, BPF file system, neighbour table, clock, packet filters."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shunt.doctor.facts import Clock, Conntrack, Mount, Unknown
from shunt.doctor.finding import Finding
from shunt.doctor.kernel import check, mount_of
from tests.doctor.hosts import by_subject, config, facts


def found(**changes: Any) -> dict[str, Finding]:
    return by_subject(check(config(), facts(**changes)))


def kernel(**changes: Any) -> dict[str, Finding]:
    return found(kernel=dataclasses.replace(facts().kernel, **changes))


@pytest.mark.parametrize(("release", "verdict"), [("6.1.0-30-amd64", "ok"), ("6.12", "ok"), ("5.10.0", "fail"), ("4.19", "fail"), ("odd", "unknown")])
def test_version(release: str, verdict: str) -> None:
    assert kernel(release=release)["kernel"].verdict == verdict
    assert ("before 6.3" in kernel(release=release)["kernel"].found) == release.startswith("6.1.")


def test_what_programs_need() -> None:
    assert kernel(btf=False)["BTF"].verdict == "fail"
    assert kernel(jit=0)["BPF JIT"].verdict == "warn"
    assert kernel(jit=2)["BPF JIT"].verdict == "ok"
    assert kernel(jit=Unknown("why"))["BPF JIT"] == Finding("unknown", "BPF JIT", "why")
    assert kernel(neighbours={4: 4096, 6: 128})["neighbour table"].verdict == "warn"
    assert kernel(neighbours={4: 4096, 6: Unknown("why")})["neighbour table"].verdict == "unknown"


def test_bpf_file_system() -> None:
    root, bpf = Mount("/", "ext4", False), Mount("/sys/fs/bpf", "bpf", False)
    assert found(mounts=(root, bpf))["BPF file system"].verdict == "ok"
    assert found(mounts=(root,))["BPF file system"].verdict == "fail"
    assert found(mounts=(root, dataclasses.replace(bpf, read_only=True)))["BPF file system"].verdict == "fail"
    assert found(mounts=Unknown("why"))["BPF file system"].verdict == "unknown"


def test_a_path_lies_in_the_nearest_mount_that_covers_it() -> None:
    root, a, covers = Mount("/", "ext4", False), Mount("/a", "tmpfs", False), Mount("/a", "bpf", False)
    assert mount_of("/ab", (root, a)) == root
    assert mount_of("/a/b", (root, a)) == a
    assert mount_of("/a/b", (a, root)) == a
    assert mount_of("/a", (root, a, covers)) == covers
    assert mount_of("/a", ()) is None


def test_clock() -> None:
    assert found()["clock"] == Finding("ok", "clock", "synchronised, within 0.01 s")
    assert found(clock=Clock(False, 16.0))["clock"].verdict == "warn"
    assert found(clock=Unknown("adjtimex: Operation not permitted"))["clock"].verdict == "unknown"


def test_packet_filters() -> None:
    rules = found(chains=2)["nftables"]
    assert rules.verdict == "ok" and "offloaded packets bypass them" in rules.found and rules.advice
    assert found(chains=Unknown("no nft"))["nftables"].verdict == "unknown"
    assert found(conntrack=Conntrack(10, 100))["conntrack"].verdict == "ok"
    assert found(conntrack=Conntrack(80, 100))["conntrack"].verdict == "warn"
