"""Checks of the network interfaces: there and up, XDP mode, receive queues, offloads, MTU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shunt.config.model import Config
from shunt.doctor.facts import XDP_BASIC, XDP_BUFFERS, XDP_TRANSMIT, Facts, Link, Unknown
from shunt.doctor.finding import Finding
from shunt.health.judge import xdp_missing

_SLOWER = "slower, and local senders that use UDP segmentation offload are not relayed correctly"
_ONE_BUFFER_MTU = 3486
"""The largest MTU at which a driver has a frame and XDP's headroom in one page of 4096 bytes."""
# What joins or changes packets before an XDP program sees them; LRO and VLAN stripping are switched off by the softswitch where the driver lets it.
_OWN = {"rx-lro": "lro", "rx-vlan-hw-parse": "rxvlan"}
_OTHERS = {"rx-gro-hw": "rx-gro-hw", "rx-gro-list": "rx-gro-list", "rx-udp-gro-forwarding": "rx-udp-gro-forwarding"}


def check(config: Config, facts: Facts) -> Iterator[Finding]:
    """One line for each question about each interface of softswitch.interfaces, and whether data_plane.cpu_interface is there."""
    plane = config.data_plane
    if plane is not None and plane.cpu_interface is not None:
        yield _present(plane.cpu_interface, "data_plane.cpu_interface", facts.links[plane.cpu_interface])
    if config.softswitch is None:
        return
    names = config.softswitch.interfaces
    if not names:
        yield Finding("warn", "softswitch.interfaces", "names no interface: no packet reaches a program", "list every interface on which media arrives or leaves")
    links = {name: link for name in names if isinstance(link := facts.links[name], Link)}
    stacked = {name: link for name, link in links.items() if link.below}
    links = {name: link for name, link in links.items() if link.below not in links}
    modes = xdp_modes(config.softswitch.mode, links) | _detached(config.softswitch.listen, links, facts)
    for name in names:
        yield _present(name, "softswitch.interfaces", facts.links[name])
        if (link := links.get(name)) is None:
            if name in stacked:
                yield Finding("ok", f"XDP on {name}", f"none needed: it is on top of {stacked[name].below}, whose program gets its packets")
        else:
            yield _on_top(link) if link.below else modes[name]
            yield _queues(link, facts.kernel.cpus)
            yield _offloads(link)
    mtus = {link.mtu for link in links.values() if link.kind != "loopback"}
    if len(mtus) > 1:
        each = ", ".join(f"{link.name} {link.mtu}" for link in links.values())
        yield Finding("warn", "MTU", f"differs: {each}; packets too long for the output interface go to the relay", "give all of them the same MTU")


def _detached(listen: Sequence[str], links: Mapping[str, Link], facts: Facts) -> dict[str, Finding]:
    """Interfaces that have lost the program of a softswitch that runs."""
    bound = facts.ports.bound
    if isinstance(bound, Unknown) or not any(one.kind == "unix" and f"unix:{one.path}" in listen for one in bound):
        return {}
    lost = {name: xdp_missing(name) for name, link in links.items() if link.attached is None}
    return {name: Finding("fail", f"XDP on {name}", finding.cause, finding.remedy) for name, finding in lost.items()}


def _present(name: str, key: str, link: Link | None | Unknown) -> Finding:
    subject = f"interface {name}"
    if isinstance(link, Unknown):
        return Finding("unknown", subject, link.reason)
    if link is None:
        return Finding("fail", subject, "there is no such interface in this network namespace", f"correct {key}, or create the interface (`ip link`)")
    if not link.up:
        return Finding("fail", subject, "is down", f"ip link set {name} up")
    driver = link.driver if isinstance(link.driver, str) and link.driver else link.kind
    return Finding("ok", subject, ", ".join(part for part in ("up", driver, f"MTU {link.mtu}") if part))


def _on_top(link: Link) -> Finding:
    subject = f"XDP on {link.name}"
    return Finding("warn", subject, f"generic, on top of {link.below}; {_SLOWER}", f"name {link.below} in softswitch.interfaces instead: its program gets the packets of {link.name}")


def xdp_modes(wanted: str, links: Mapping[str, Link]) -> dict[str, Finding]:
    """Which XDP mode each interface has, or will get from the softswitch, by its rules: in mode `auto` one interface that cannot transmit makes all generic."""
    cannot = [link.name for link in links.values() if link.attached is None and _takes_native(link) and _transmits(link) is False] if wanted == "auto" else []
    return {name: _xdp(wanted, link, [other for other in cannot if other != name]) for name, link in links.items()}


def _takes_native(link: Link) -> bool | None:
    """Whether the driver takes programs; None: nobody knows."""
    return None if isinstance(link.xdp_features, Unknown) else bool(link.xdp_features & XDP_BASIC)


def _transmits(link: Link) -> bool | None:
    """Whether it transmits redirected frames. Most drivers say yes only once a program is attached; a veth's answer depends on its peer alone."""
    if isinstance(link.xdp_features, Unknown):
        return False if link.kind == "veth" else None
    if link.xdp_features & XDP_TRANSMIT:
        return True
    return False if link.kind == "veth" else None


def _xdp(wanted: str, link: Link, cannot: list[str]) -> Finding:
    subject = f"XDP on {link.name}"
    if link.attached is not None:
        return _attached(wanted, link, subject)
    if wanted == "generic":
        return Finding("ok", subject, "will be generic, as softswitch.mode says")
    takes = _takes_native(link)
    if takes is False:
        found = f"the driver {link.driver if isinstance(link.driver, str) else link.kind} takes no programs"
        if wanted == "native":
            return Finding("fail", subject, f"{found}, and softswitch.mode is native", "use another card or driver, or mode: auto")
        return Finding("warn", subject, f"will be generic: {found}; {_SLOWER}", "use another card or driver, if the load needs it")
    if link.mtu > _ONE_BUFFER_MTU and not isinstance(link.xdp_features, Unknown) and not link.xdp_features & XDP_BUFFERS:
        found = f"at MTU {link.mtu} the driver accepts no programs: it delivers frames of one buffer only"
        advice = f"ip link set {link.name} mtu {_ONE_BUFFER_MTU}, or less"
        if wanted == "native":
            return Finding("fail", subject, f"{found}, and softswitch.mode is native", f"{advice}; or mode: auto")
        return Finding("warn", subject, f"will be generic: {found}; {_SLOWER}", advice)
    transmits = _transmits(link)
    if transmits is False and wanted == "auto":
        return Finding("warn", subject, f"will be generic: it cannot transmit redirected frames; {_SLOWER}", "at the other end of the veth: ethtool -K PEER gro on")
    if transmits is False:
        return Finding("fail", subject, "cannot transmit redirected frames, and softswitch.mode is native: they are lost", "at the other end of the veth: ethtool -K PEER gro on; or mode: auto")
    if cannot and wanted == "auto":
        return Finding("warn", subject, f"will be generic, because {', '.join(cannot)} cannot transmit redirected frames; {_SLOWER}", f"see XDP on {cannot[0]}")
    if takes is None and isinstance(link.xdp_features, Unknown):
        return Finding("unknown", subject, link.xdp_features.reason, "start the softswitch: its first line has the mode")
    if transmits is None:
        return Finding("unknown", subject, "the driver accepts programs; only with a program attached does it report whether it transmits redirected frames", "start the softswitch, then ask again")
    return Finding("ok", subject, "will be native")


def _attached(wanted: str, link: Link, subject: str) -> Finding:
    if isinstance(link.pinned, Unknown):
        return Finding("unknown", subject, f"a program of unknown owner is attached ({link.attached}): {link.pinned.reason}")
    if not link.pinned:
        return Finding("fail", subject, f"another XDP program is attached ({link.attached}): the softswitch ends with exit code 78", f"detach it: ip link set {link.name} xdp off")
    if link.attached == "generic" and wanted == "auto":
        return Finding("warn", subject, f"generic; {_SLOWER}", "see docs/operate/requirements.md, Network interfaces")
    if link.attached in ("native", "generic") and wanted not in ("auto", link.attached):
        return Finding("warn", subject, f"{link.attached}, but softswitch.mode is {wanted}", "restart the softswitch")
    return Finding("ok", subject, f"{link.attached}")


def _queues(link: Link, cpus: int) -> Finding:
    subject = f"receive queues of {link.name}"
    if link.rx_queues > 1 or cpus == 1:
        return Finding("ok", subject, f"{link.rx_queues} for {cpus} CPU core{'' if cpus == 1 else 's'}")
    if link.max_queues is not None and link.max_queues > 1:
        return Finding("warn", subject, "1: one CPU core takes all of its packets", f"ethtool -L {link.name} combined {min(link.max_queues, cpus)}")
    return Finding("warn", subject, "1, and the device has no more: one CPU core takes all of its packets", "enough for the load of one core (docs/operate/sizing.md)")


def _offloads(link: Link) -> Finding:
    subject = f"offloads of {link.name}"
    if isinstance(link.offloads, Unknown):
        return Finding("unknown", subject, link.offloads.reason)
    own = [name for name in _OWN if (feature := link.offloads.get(name)) is not None and feature.active]
    others = [name for name in _OTHERS if (feature := link.offloads.get(name)) is not None and feature.active]
    # What can be changed is switched off when the softswitch attaches its program.
    disturb = [name for name in own if link.attached is not None or link.offloads[name].fixed] + others
    if not disturb:
        later = f"; the softswitch will switch off {', '.join(own)}" if own else ""
        return Finding("ok", subject, f"none that disturbs{later}")
    fixed = [name for name in disturb if link.offloads[name].fixed]
    change = [(_OWN | _OTHERS)[name] for name in disturb if name not in fixed]
    found = f"{', '.join(disturb)} {'is' if len(disturb) == 1 else 'are'} on: XDP sees packets joined, or without their VLAN tags"
    advice = [f"ethtool -K {link.name} {' '.join(f'{name} off' for name in change)}"] if change else []
    advice += [f"{', '.join(fixed)} cannot be changed here: change them on the virtual machine's host, or use another card"] if fixed else []
    return Finding("warn", subject, found, "; ".join(advice))
