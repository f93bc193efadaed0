"""Checks of the kernel, its BPF file system, its tables and the clock."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shunt.config.model import Config
from shunt.doctor.facts import Facts, Mount, Unknown
from shunt.doctor.finding import Finding

OLDEST = (6, 1)
_TELLS_FEATURES = (6, 3)
_NEIGHBOURS = 1024
_CONNTRACK_SHARE = 0.8


def check(config: Config, facts: Facts) -> Iterator[Finding]:
    """What the softswitch needs of the kernel, where the configuration has one; the clock in any case."""
    if config.softswitch is not None:
        yield _version(facts.kernel.release)
        if facts.kernel.btf:
            yield Finding("ok", "BTF", "/sys/kernel/btf/vmlinux is there")
        else:
            yield Finding("fail", "BTF", "there is no /sys/kernel/btf/vmlinux", "use a kernel built with CONFIG_DEBUG_INFO_BTF, such as Debian's")
        yield _jit(facts.kernel.jit)
        yield _bpffs(config.softswitch.pin_dir, facts.mounts)
        yield _neighbours(facts)
    yield _clock(facts)
    yield from _firewall(config, facts)


def version(release: str) -> tuple[int, int] | None:
    """6.1 of "6.1.0-30-amd64"."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return None if match is None else (int(match[1]), int(match[2]))


def _version(release: str) -> Finding:
    found = version(release)
    if found is None:
        return Finding("unknown", "kernel", f"{release!r} is not a version")
    if found < OLDEST:
        return Finding("fail", "kernel", f"{release} is older than {'.'.join(map(str, OLDEST))}: the XDP programs do not load", "a newer kernel")
    if found < _TELLS_FEATURES:
        return Finding("ok", "kernel", f"{release}; before 6.3 it does not report which interfaces transmit redirected frames: with a veth the softswitch uses generic XDP")
    return Finding("ok", "kernel", release)


def _jit(value: int | Unknown) -> Finding:
    if isinstance(value, Unknown):
        return Finding("unknown", "BPF JIT", value.reason)
    if value == 0:
        return Finding("warn", "BPF JIT", "is off: programs are interpreted, several times slower", "sysctl -w net.core.bpf_jit_enable=1")
    return Finding("ok", "BPF JIT", "is on")


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that a path lies in; of several at one place the last, which covers the others."""
    found: Mount | None = None
    for mount in mounts:
        inside = path == mount.path or path.startswith(mount.path.rstrip("/") + "/")
        if inside and (found is None or len(mount.path) >= len(found.path)):
            found = mount
    return found


def _bpffs(pin_dir: str, mounts: tuple[Mount, ...] | Unknown) -> Finding:
    if isinstance(mounts, Unknown):
        return Finding("unknown", "BPF file system", mounts.reason)
    mount = mount_of(pin_dir, mounts)
    if mount is None or mount.kind != "bpf":
        return Finding("fail", "BPF file system", f"softswitch.pin_dir {pin_dir} is not on a BPF file system", "mount -t bpf bpf /sys/fs/bpf (systemd does it)")
    if mount.read_only:
        return Finding("fail", "BPF file system", f"{mount.path} is mounted read-only", f"mount -o remount,rw {mount.path}")
    return Finding("ok", "BPF file system", f"mounted at {mount.path}")


def _neighbours(facts: Facts) -> Finding:
    subject = "neighbour table"
    values = facts.kernel.neighbours
    if unknown := [value for value in values.values() if isinstance(value, Unknown)]:
        return Finding("unknown", subject, unknown[0].reason)
    each = ", ".join(f"{value} for IPv{ip}" for ip, value in values.items())
    if any(isinstance(value, int) and value < _NEIGHBOURS for value in values.values()):
        return Finding(
            "warn", subject, f"room (gc_thresh3): {each}", f"sysctl -w net.ipv4.neigh.default.gc_thresh3={_NEIGHBOURS}, and the IPv6 one: at least the directly connected phones and gateways"
        )
    return Finding("ok", subject, f"room (gc_thresh3) for directly connected phones and gateways: {each}")


def _clock(facts: Facts) -> Finding:
    if isinstance(facts.clock, Unknown):
        return Finding("unknown", "clock", facts.clock.reason)
    if not facts.clock.synchronised:
        return Finding("warn", "clock", "is not synchronised: times of records and logs may be wrong", "run an NTP client (systemd-timesyncd, chrony) and look at `timedatectl`")
    return Finding("ok", "clock", f"synchronised, within {facts.clock.max_error_s:.3g} s")


def _firewall(config: Config, facts: Facts) -> Iterator[Finding]:
    if config.softswitch is None:
        return
    subject = "nftables"
    if isinstance(facts.chains, Unknown):
        yield Finding("unknown", subject, facts.chains.reason)
    elif facts.chains:
        word = "chain is" if facts.chains == 1 else "chains are"
        yield Finding("ok", subject, f"{facts.chains} base {word} in the path of packets to this host; offloaded packets bypass them", "block sources of media before this host")
    else:
        yield Finding("ok", subject, "no base chain in the path of packets to this host")
    if facts.conntrack is None:
        yield Finding("ok", "conntrack", "is not in use")
    elif facts.conntrack.held >= _CONNTRACK_SHARE * facts.conntrack.limit:
        found = f"{facts.conntrack.held} of {facts.conntrack.limit} flows: when it is full, media that the relay carries is dropped"
        yield Finding("warn", "conntrack", found, "sysctl -w net.netfilter.nf_conntrack_max=…, or rules `notrack` for the media ports")
    else:
        yield Finding("ok", "conntrack", f"{facts.conntrack.held} of {facts.conntrack.limit} flows")
