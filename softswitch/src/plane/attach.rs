//! Attaches the programs to interfaces, and follows interfaces that appear and disappear.

use super::hops::KernelHops;
use crate::config::{Softswitch, XdpMode};
use crate::plane::PlaneError;
use shunt_abi::relay::{interface_flag, own_mac, settings, size};
use shunt_xdp::{Directory, Link, Loaded, Mode, Result, Shared, disable_offloads, requested_offloads, set_offloads};
use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

const ROWS: usize = size::INTERFACES.0 as usize;
const PROBES: usize = size::INTERFACE_PROBES.0 as usize;
const FURTHER: usize = size::FURTHER_MACS.0 as usize;
/// Bytes of a frame in addition to the IP packet, and the largest frame in one page-sized buffer with room for XDP.
const ETHERNET_HEADER: u32 = 14;
const ONE_BUFFER: u32 = 3500;
/// The loopback interface, where the kernel lets packets of test runs arrive.
const LOOPBACK: u32 = 1;
/// Kinds of interfaces that deliver frames whose UDP checksum is left to the hardware.
const LOCAL_SENDERS: [&str; 7] = ["veth", "tun", "bridge", "macvlan", "ipvlan", "bond", "vlan"];

/// A served interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub ifindex: u32,
    /// Mode of the attached program; `None`: another process has detached it.
    pub mode: Option<Mode>,
    /// Receive queues; each is served by one CPU.
    pub rx_queues: u32,
}

struct Attached {
    name: String,
    ifindex: u32,
    mode: Mode,
    link: Link,
    /// A former process attached it.
    adopted: bool,
}

impl Attached {
    /// Returns the mode of the program as the kernel has it now. A detached link has no interface.
    fn mode_now(&self) -> Option<Mode> {
        let is_attached = self.link.ifindex().is_ok_and(|ifindex| ifindex == self.ifindex);
        is_attached.then_some(self.mode)
    }
}

/// Under this name, with the interface's number, the pin directory stores the interface's name and the offloads that were requested before
/// the program was attached.
const OFFLOADS: &str = "offloads_";

/// Stores the offloads of an interface, unless an earlier start has: that one found them as the operator had set them.
fn remember_offloads(directory: &Directory, ifindex: u32, interface: &str) {
    let name = format!("{OFFLOADS}{ifindex}");
    let found = requested_offloads(interface);
    if directory.noted(&name).is_none()
        && !found.is_empty()
        && let Err(error) = directory.note(&name, &format!("{interface} {}", found.join(",")))
    {
        tracing::warn!("the offloads of {interface} are not switched on again at an unload: {error}");
    }
}

/// Requests the earlier offloads again on each interface without a program of this directory.
pub fn restore_offloads(directory: &Directory) {
    let names = directory.names();
    for name in &names {
        let Some(ifindex) = name.strip_prefix(OFFLOADS).and_then(|number| number.parse().ok()) else {
            continue;
        };
        let pins = [Mode::Native, Mode::Generic].map(|mode| link_pin(ifindex, mode));
        if pins.iter().any(|pin| names.contains(pin)) {
            continue;
        }
        let noted = directory.noted(name).unwrap_or_default();
        let (interface, wanted) = noted.split_once(' ').unwrap_or_default();
        let wanted: Vec<&str> = wanted.split(',').collect();
        // An interface that is gone has no settings. In another network namespace the number may belong to another one.
        if nix::net::if_::if_nametoindex(interface) == Ok(ifindex) {
            let now = requested_offloads(interface);
            if wanted.iter().any(|one| !now.contains(one)) && !set_offloads(interface, &wanted, true) {
                tracing::warn!(
                    "offloads of {interface} were on and cannot be switched on again: {}",
                    wanted.join(", ")
                );
            }
        }
        directory.remove(name);
    }
}

/// Returns whether a name in the pin directory is one of those that [`restore_offloads`] reads.
pub fn is_note(name: &str) -> bool {
    name.starts_with(OFFLOADS)
}

/// The interfaces with the program.
pub struct Attachments {
    attached: Vec<Attached>,
    native: String,
    generic: String,
    macs: Shared<own_mac>,
    /// Content of `macs`, by interface.
    written: BTreeMap<u32, OwnMac>,
    link_changes: u64,
}

/// A row of `macs`: address, flags, addresses of the interfaces above.
type OwnMac = (u64, u32, [u64; FURTHER]);

/// Rejects missing interfaces before anything is loaded or pinned.
pub fn check_interfaces(names: &[String]) -> std::result::Result<(), PlaneError> {
    for name in names {
        if nix::net::if_::if_nametoindex(name.as_str()).is_err() {
            return Err(PlaneError::Config(format!(
                "softswitch.interfaces: there is no interface {name} in this network namespace"
            )));
        }
    }
    Ok(())
}

/// Returns the configured interfaces that exist.
fn wanted_names<'a>(names: &'a [String], hops: &'a KernelHops) -> impl Iterator<Item = (&'a str, u32)> {
    names
        .iter()
        .filter_map(|name| Some((name.as_str(), hops.0.link_named(name)?.ifindex)))
}

/// Returns why a program cannot be attached, with the remedy.
fn reason(mode: Mode, error: &shunt_xdp::Error, mtu: u32) -> String {
    use nix::libc;
    match error.errno() {
        libc::EOPNOTSUPP if mode == Mode::Native => "native XDP is not possible: its driver takes no programs".into(),
        libc::EEXIST => "an interface on top of it has an XDP program: name the lower interface alone in softswitch.interfaces".into(),
        libc::ERANGE | libc::EINVAL if mode == Mode::Native && mtu + ETHERNET_HEADER > ONE_BUFFER => {
            format!("native XDP is not possible at MTU {mtu}: lower the MTU (ip link set mtu), or choose mode: generic")
        }
        _ => error.to_string(),
    }
}

fn link_pin(ifindex: u32, mode: Mode) -> String {
    // By number, because a BPF file system allows no dots in names.
    format!("link_{ifindex}_{mode}")
}

impl Attachments {
    /// Attaches to the configured interfaces, and detaches from others.
    pub fn attach(
        config: &Softswitch,
        directory: &Directory,
        loaded: &Loaded,
        conferences: bool,
        hops: &mut KernelHops,
    ) -> std::result::Result<Self, PlaneError> {
        let prefix = match (conferences, config.packet_limit > 0) {
            (false, false) => "relay",
            (false, true) => "limited",
            (true, false) => "replicate",
            (true, true) => "replicate_limited",
        };
        let mut made = Self {
            attached: Vec::new(),
            native: format!("{prefix}_native"),
            generic: format!("{prefix}_generic"),
            macs: Shared::map(loaded.map(".data.own_macs")?, ROWS)?,
            written: BTreeMap::new(),
            link_changes: 0,
        };
        let mut wanted: Vec<(String, u32)> = Vec::new();
        for name in &config.interfaces {
            let link = hops
                .0
                .link_named(name)
                .ok_or_else(|| PlaneError::Config(format!("there is no interface {name}")))?;
            if !wanted.iter().any(|(known, _)| known == name) {
                wanted.push((name.clone(), link.ifindex));
            }
        }
        // The program on the lower interface gets its packets too, and the kernel accepts no program below one that is above.
        wanted.retain(|(name, ifindex)| {
            let is_macvlan = hops.0.kind(*ifindex).is_some_and(|kind| kind.starts_with("macv"));
            let lower = wanted_names(&config.interfaces, hops).find(|(_, other)| hops.0.is_above(*ifindex, *other));
            let Some((lower, _)) = lower.filter(|_| is_macvlan) else {
                return true;
            };
            tracing::info!("{name} is on top of {lower}, whose program gets the packets of {name}: it needs none of its own");
            false
        });
        // Links of a former process on unwanted interfaces stay until the start has succeeded.
        let mut unwanted = Vec::new();
        for name in directory.names().into_iter().filter(|name| name.starts_with("link_")) {
            let link = Link::from_fd(directory.get(&name)?);
            let ifindex = name.split('_').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
            if link.ifindex()? != ifindex {
                link.detach(); // its interface is gone, or another one now
                directory.remove(&name);
            } else if !wanted.iter().any(|(_, index)| *index == ifindex) {
                unwanted.push((name, ifindex, link));
            }
        }
        let indexes: Vec<u32> = wanted.iter().map(|(_, ifindex)| *ifindex).collect();
        made.write_macs(
            hops,
            indexes
                .iter()
                .copied()
                .chain(unwanted.iter().map(|(_, ifindex, _)| *ifindex))
                .collect(),
        );
        let result = made.attach_all(config.mode, &wanted, directory, loaded, hops);
        if let Err(error) = result {
            for at in (0..made.attached.len()).filter(|at| !made.attached[*at].adopted) {
                made.detach(at, directory);
            }
            restore_offloads(directory);
            return Err(error);
        }
        for (name, _, link) in unwanted {
            link.detach();
            directory.remove(&name);
        }
        restore_offloads(directory);
        made.write_macs(hops, indexes);
        Ok(made)
    }

    fn attach_all(
        &mut self,
        mode: XdpMode,
        wanted: &[(String, u32)],
        directory: &Directory,
        loaded: &Loaded,
        hops: &mut KernelHops,
    ) -> std::result::Result<(), PlaneError> {
        for (name, ifindex) in wanted {
            let mtu = hops.0.link(*ifindex).map_or(0, |link| link.mtu);
            let attached = self.attach_one(name, *ifindex, mtu, mode, directory, loaded)?;
            self.attached.push(attached);
        }
        if mode == XdpMode::Auto && self.is_native() {
            hops.0.attached(self.indexes());
            let silent: Vec<&str> = wanted
                .iter()
                .filter(|(_, ifindex)| !hops.0.sends(*ifindex))
                .map(|(name, _)| name.as_str())
                .collect();
            if !silent.is_empty() {
                tracing::info!(
                    "{} cannot send what native XDP redirects: generic XDP on every interface",
                    silent.join(", ")
                );
                for (at, (name, ifindex)) in wanted.iter().enumerate() {
                    if self.attached[at].mode == Mode::Native {
                        self.detach(at, directory);
                        self.attached[at] = self.attach_one(name, *ifindex, 0, XdpMode::Generic, directory, loaded)?;
                    }
                }
            }
        }
        hops.0.attached(self.indexes());
        self.set_native(&Shared::map(loaded.map(".data.settings")?, 1)?);
        Ok(())
    }

    fn program<'a>(&self, loaded: &'a Loaded, mode: Mode) -> Result<BorrowedFd<'a>> {
        loaded.program(match mode {
            Mode::Native => &self.native,
            Mode::Generic => &self.generic,
        })
    }

    fn attach_one(
        &self,
        name: &str,
        ifindex: u32,
        mtu: u32,
        wanted: XdpMode,
        directory: &Directory,
        loaded: &Loaded,
    ) -> std::result::Result<Attached, PlaneError> {
        for mode in [Mode::Native, Mode::Generic] {
            let pin = link_pin(ifindex, mode);
            if !directory.has(&pin) {
                continue;
            }
            let link = Link::from_fd(directory.get(&pin)?);
            if wanted.allows(mode) {
                link.replace(self.program(loaded, mode)?)?;
                return Ok(Attached {
                    name: name.to_owned(),
                    ifindex,
                    mode,
                    link,
                    adopted: true,
                });
            }
            link.detach();
            directory.remove(&pin);
        }
        remember_offloads(directory, ifindex, name);
        if !disable_offloads(name) {
            tracing::info!("{name} keeps VLAN stripping or large receive offload: tags that it strips are invisible to XDP");
        }
        let tries: &[Mode] = match wanted {
            XdpMode::Auto => &[Mode::Native, Mode::Generic],
            XdpMode::Native => &[Mode::Native],
            XdpMode::Generic => &[Mode::Generic],
        };
        let mut failed: Option<String> = None;
        for mode in tries {
            match Link::attach(self.program(loaded, *mode)?, ifindex, *mode) {
                Ok(link) => {
                    if let Some(failed) = &failed {
                        tracing::warn!("{name} has generic XDP, which takes more processor time: {failed}");
                    }
                    directory.pin(&link_pin(ifindex, *mode), &link)?;
                    return Ok(Attached {
                        name: name.to_owned(),
                        ifindex,
                        mode: *mode,
                        link,
                        adopted: false,
                    });
                }
                Err(error) if error.errno() == nix::libc::EBUSY => {
                    return Err(PlaneError::Config(format!(
                        "{name} already has another XDP program: detach it first"
                    )));
                }
                Err(error) => failed = Some(reason(*mode, &error, mtu)),
            }
        }
        Err(PlaneError::Config(format!("{name}: {}", failed.unwrap_or("no XDP mode".into()))))
    }

    fn detach(&self, at: usize, directory: &Directory) {
        let attached = &self.attached[at];
        attached.link.detach();
        directory.remove(&link_pin(attached.ifindex, attached.mode));
    }

    fn is_native(&self) -> bool {
        self.attached.iter().any(|attached| attached.mode == Mode::Native)
    }

    /// Returns the interfaces' numbers.
    pub fn indexes(&self) -> Vec<u32> {
        self.attached.iter().map(|attached| attached.ifindex).collect()
    }

    fn set_native(&self, settings: &Shared<settings>) {
        settings
            .u32_at(0, offset_of!(settings, native))
            .store(u32::from(self.is_native()), Ordering::Release);
    }

    /// Attaches again to interfaces that were removed and made again under their name, and follows their MAC addresses.
    pub fn follow(&mut self, directory: &Directory, loaded: &Loaded, hops: &mut KernelHops, settings: &Shared<settings>) {
        if hops.0.link_changes() == self.link_changes {
            return;
        }
        self.link_changes = hops.0.link_changes();
        for at in 0..self.attached.len() {
            let (name, ifindex) = (self.attached[at].name.clone(), self.attached[at].ifindex);
            let Some((now, mtu)) = hops.0.link_named(&name).map(|link| (link.ifindex, link.mtu)) else {
                continue;
            };
            if now == ifindex {
                continue;
            }
            self.detach(at, directory);
            let wanted = match self.attached[at].mode {
                Mode::Native => XdpMode::Native,
                Mode::Generic => XdpMode::Generic,
            };
            match self.attach_one(&name, now, mtu, wanted, directory, loaded) {
                Ok(attached) => {
                    tracing::info!("{name} came back as interface {now}");
                    self.attached[at] = attached;
                }
                // The next change of a link is the next try.
                Err(error) => tracing::error!("{name} came back, but the program cannot be attached: {error}"),
            }
        }
        restore_offloads(directory);
        self.write_macs(hops, self.indexes());
        self.set_native(settings);
        hops.0.attached(self.indexes());
    }

    /// Tells the programs the MAC addresses of the interfaces and of those above them, and which interfaces may deliver unfinished
    /// checksums.
    fn write_macs(&mut self, hops: &KernelHops, mut indexes: Vec<u32>) {
        indexes.push(LOOPBACK);
        let mut wanted = BTreeMap::new();
        for ifindex in indexes {
            let mac = hops.0.mac(ifindex).unwrap_or_default();
            let local = ifindex == LOOPBACK || hops.0.kind(ifindex).is_some_and(|kind| LOCAL_SENDERS.contains(&kind));
            let flags = if local { interface_flag::INTERFACE_LOCAL_SENDERS.0 } else { 0 };
            let word = |[a, b, c, d, e, f]: [u8; 6]| u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
            let (above, mut further) = (hops.0.macs_above(ifindex), [0; FURTHER]);
            for (to, mac) in further.iter_mut().zip(&above) {
                *to = word(*mac);
            }
            // If there are more addresses than fit, frames to other addresses are relayed too.
            let own = if above.len() > FURTHER { 0 } else { word(mac) };
            wanted.insert(ifindex, (own, flags, further));
        }
        if wanted == self.written {
            return;
        }
        for row in 0..ROWS {
            let held = self.macs.u32_at(row, offset_of!(own_mac, ifindex)).load(Ordering::Relaxed);
            if held != 0 && !wanted.contains_key(&held) {
                self.macs.u32_at(row, offset_of!(own_mac, ifindex)).store(0, Ordering::Release);
            }
        }
        for (ifindex, (mac, flags, further)) in &wanted {
            let rows = (0..PROBES).map(|n| (*ifindex as usize + n) % ROWS);
            let held = |row: &usize| self.macs.u32_at(*row, offset_of!(own_mac, ifindex)).load(Ordering::Relaxed);
            let row = rows
                .clone()
                .find(|row| held(row) == *ifindex)
                .or_else(|| rows.clone().find(|row| held(row) == 0));
            let Some(row) = row else {
                tracing::warn!("no room for the MAC address of interface {ifindex}: frames to other addresses are relayed too");
                continue;
            };
            self.macs.u64_at(row, offset_of!(own_mac, mac)).store(*mac, Ordering::Relaxed);
            self.macs.u32_at(row, offset_of!(own_mac, flags)).store(*flags, Ordering::Relaxed);
            for (at, mac) in further.iter().enumerate() {
                let word = self.macs.u64_at(row, offset_of!(own_mac, further) + size_of::<u64>() * at);
                word.store(*mac, Ordering::Relaxed);
            }
            self.macs
                .u32_at(row, offset_of!(own_mac, ifindex))
                .store(*ifindex, Ordering::Release);
        }
        self.written = wanted;
    }

    /// Returns the served interfaces with the present mode of the program.
    pub fn interfaces(&self, hops: &KernelHops) -> Vec<Interface> {
        self.attached
            .iter()
            .map(|attached| Interface {
                name: attached.name.clone(),
                ifindex: attached.ifindex,
                mode: attached.mode_now(),
                rx_queues: hops.0.link(attached.ifindex).map_or(0, |link| link.rx_queues),
            })
            .collect()
    }
}

const _: () = assert!(size_of::<own_mac>() == 64);
