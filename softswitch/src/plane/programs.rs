//! Loads the programs, and adopts pins of a former process.
//!
//! Every map is pinned under its name, every program below `programs/`. Programs are used again if the same object with the same constants
//! loaded them, because verifying them takes most of a start. The pin of the map `limits` carries the fingerprint of that object.

use crate::config::{Softswitch, SourceMismatch};
use crate::plane::PlaneError;
use crate::plane::attach::{is_note, restore_offloads};
use shunt_abi::relay::{detail, layout, layout_mark, rodata, size, slot};
use shunt_nexthop::Netlink;
use shunt_relay_table::{chunk_count, tick_table};
use shunt_xdp::{Constant, Directory, Link, Load, Loaded, Shared, map_names, tick_ms};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

const PROGRAMS: &str = "programs";
const LIMITS: &str = "limits";
const CHUNK: usize = size::CHUNK_PORTS.0 as usize;
/// RTP clock in Hz assumed for the payload types 96 to 127.
const DYNAMIC_CLOCK: u32 = 8000;
/// Window of a packet limit, approximately, in milliseconds.
const LIMIT_WINDOW_MS: f64 = 250.0;
/// Seconds without a packet after which an entry no longer drops packets of other sources.
const IDLE_MISMATCH_S: f64 = 5.0;

/// The loaded object of the relay.
pub struct Relay {
    pub loaded: Loaded,
    /// Constants of the relay's programs, which the conference programs share.
    pub constants: Vec<Constant>,
    /// Whether the maps are new.
    pub fresh: bool,
}

fn constant(offset: usize, bytes: &[u8]) -> Constant {
    Constant {
        offset,
        bytes: bytes.to_vec(),
    }
}

/// Returns the TTL or hop limit of this host's own packets, with which packets of the relay server would leave.
fn host_value(name: &str) -> u8 {
    const USUAL: u8 = 64;
    let text = fs::read_to_string(Path::new("/proc/sys/net").join(name));
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|ttl| *ttl != 0)
        .unwrap_or(USUAL)
}

fn constants(config: &Softswitch, slots: usize) -> Vec<Constant> {
    let tick = tick_ms();
    let window = (LIMIT_WINDOW_MS / tick).round_ties_even().max(1.0);
    // The tick is measured, so rounding must not add a packet.
    let in_window = (f64::from(config.packet_limit) * window * tick / 1000.0 - 1e-3).ceil();
    let ticks: Vec<u8> = tick_table(DYNAMIC_CLOCK).iter().flat_map(|tick| tick.to_ne_bytes()).collect();
    let number = |offset, value: u32| constant(offset, &value.to_ne_bytes());
    vec![
        number(offset_of!(rodata, last_slot), ((slots - 1) * size_of::<slot>()) as u32),
        number(offset_of!(rodata, packet_limit), in_window as u32),
        number(offset_of!(rodata, limit_window), window as u32),
        number(offset_of!(rodata, limit_slots), slots as u32),
        number(offset_of!(rodata, idle_mismatch), (IDLE_MISMATCH_S * 1000.0 / tick).round() as u32),
        constant(offset_of!(rodata, tick_ns), &ticks),
        constant(offset_of!(rodata, fresh_ttl), &[host_value("ipv4/ip_default_ttl")]),
        constant(offset_of!(rodata, fresh_hop_limit), &[host_value("ipv6/conf/default/hop_limit")]),
        constant(
            offset_of!(rodata, drop_source_mismatch),
            &[u8::from(config.source_mismatch == SourceMismatch::Drop)],
        ),
    ]
}

/// Loads the relay's programs on new maps, or on the pinned ones.
///
/// # Errors
/// The kernel rejects them; pins of this call are removed.
pub fn relay(directory: &Directory, config: &Softswitch) -> Result<Relay, PlaneError> {
    let mut chunks = chunk_count(config.capacity);
    let fresh = match pinned_mark(directory)? {
        Some(mark) => {
            chunks = mark.chunks as usize;
            if mark.capacity as usize != config.capacity {
                tracing::warn!(
                    "the table pinned in {} has capacity {}; {} takes effect after `shunt softswitch --unload`",
                    directory.path().display(),
                    mark.capacity,
                    config.capacity
                );
            }
            false
        }
        None => {
            // Otherwise the remains of an incomplete start.
            remove_all(directory);
            true
        }
    };
    let slots = chunks * CHUNK;
    let constants = constants(config, slots);
    let limited = config.packet_limit > 0;
    let sizes = BTreeMap::from([
        (".data.slots", slots * size_of::<slot>()),
        ("details", slots),
        ("wides", slots),
        ("overflow", config.capacity),
        (LIMITS, if limited { slots + size::LOOSE_LIMITS.0 as usize } else { 1 }),
    ]);
    let without: &[&str] = if limited {
        &["relay_native", "relay_generic"]
    } else {
        &["limited_native", "limited_generic"]
    };
    let load = Load {
        name: "relay",
        object: shunt_abi::RELAY_OBJECT,
        sizes,
        reuse: BTreeMap::new(),
        constants: &constants,
        without,
    };
    let loaded = load_once(directory, &load, "relay").inspect_err(|_| undo(directory, fresh))?;
    if fresh {
        let mark = layout_mark {
            magic: layout::LAYOUT_MAGIC.0,
            version: layout::LAYOUT_VERSION.0,
            capacity: config.capacity as u32,
            chunks: chunks as u32,
        };
        Shared::<layout_mark>::map(loaded.map("layout")?, 1)?.store(0, &mark);
    }
    Ok(Relay { loaded, constants, fresh })
}

/// Removes the pins of a failed start.
pub fn undo(directory: &Directory, fresh: bool) {
    if fresh {
        remove_all(directory);
        restore_offloads(directory);
        directory.remove_if_empty(false);
    }
}

/// Returns the mark of pinned maps that can be adopted.
fn pinned_mark(directory: &Directory) -> Result<Option<layout_mark>, PlaneError> {
    if !directory.has("layout") {
        return Ok(None);
    }
    let mark = Shared::<layout_mark>::map(directory.get("layout")?, 1)?.load(0);
    if mark.magic == layout::LAYOUT_MAGIC.0 && mark.version == layout::LAYOUT_VERSION.0 {
        return Ok(Some(mark));
    }
    // A mark of zeros was never written, because the start did not finish.
    if mark.magic != 0 {
        tracing::warn!(
            "the tables pinned in {} have layout {}, this program has {}: they are removed, and media goes through the relay until the \
             agent has written its entries again",
            directory.path().display(),
            mark.version,
            layout::LAYOUT_VERSION.0
        );
    }
    Ok(None)
}

/// Loads an object on the pinned maps and those in `load.reuse`, or uses the programs that the same object has loaded. Maps and programs
/// are pinned.
pub fn load_once(directory: &Directory, load: &Load<'_>, kind: &str) -> Result<Loaded, PlaneError> {
    let names = map_names(load.object)?;
    let mark = format!("{LIMITS}_{kind}_{:016x}", fingerprint(load));
    let shared: Vec<String> = load.reuse.keys().cloned().collect();
    let mut pinned: BTreeMap<String, OwnedFd> = BTreeMap::new();
    for name in names.iter().filter(|name| is_pinned(name) && !shared.contains(name)) {
        if directory.has(name) {
            pinned.insert(name.clone(), directory.get(name)?);
        }
    }
    let own = |pinned: &BTreeMap<String, OwnedFd>, load: &Load<'_>| -> Result<BTreeMap<String, OwnedFd>, PlaneError> {
        let mut maps = BTreeMap::new();
        for (name, fd) in pinned
            .iter()
            .map(|(name, fd)| (name, fd.as_fd()))
            .chain(load.reuse.iter().map(|(name, fd)| (name, *fd)))
        {
            maps.insert(
                name.clone(),
                fd.try_clone_to_owned()
                    .map_err(|error| PlaneError::Io("a file descriptor".into(), error))?,
            );
        }
        Ok(maps)
    };
    if directory.has(&mark)
        && names
            .iter()
            .all(|name| !is_pinned(name) || shared.contains(name) || pinned.contains_key(name))
    {
        let mut loaded = Loaded {
            programs: BTreeMap::new(),
            maps: own(&pinned, load)?,
        };
        if !shared.iter().any(|name| name == LIMITS) {
            loaded.maps.insert(LIMITS.into(), directory.get(&mark)?);
        }
        for name in directory.names_in(&format!("{PROGRAMS}/{kind}")) {
            loaded
                .programs
                .insert(name.clone(), directory.get(&format!("{PROGRAMS}/{kind}/{name}"))?);
        }
        return Ok(loaded);
    }
    forget_programs(directory, kind);
    let mut reuse: BTreeMap<String, BorrowedFd<'_>> = pinned.iter().map(|(name, fd)| (name.clone(), fd.as_fd())).collect();
    reuse.extend(load.reuse.iter().map(|(name, fd)| (name.clone(), *fd)));
    let loaded = Load {
        sizes: load.sizes.clone(),
        reuse,
        ..*load
    }
    .load()?;
    for (name, fd) in &loaded.maps {
        // The layout's mark is the last pinned map: without it the maps are not a table.
        if is_pinned(name) && !shared.contains(name) && !pinned.contains_key(name) && !is_mark(name) {
            directory.pin(name, fd)?;
        }
    }
    for (name, fd) in &loaded.maps {
        if is_mark(name) && !shared.contains(name) && !pinned.contains_key(name) {
            directory.pin(name, fd)?;
        }
    }
    for (name, fd) in &loaded.programs {
        directory.pin(&format!("{PROGRAMS}/{kind}/{name}"), fd)?;
    }
    directory.pin(&mark, loaded.map(LIMITS)?)?;
    Ok(loaded)
}

fn is_mark(name: &str) -> bool {
    name.ends_with("layout")
}

/// Returns whether a map is pinned under its name. Constants belong to the programs, and `limits` to a fingerprint.
fn is_pinned(name: &str) -> bool {
    !name.contains(".rodata") && name != LIMITS
}

fn fingerprint(load: &Load<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    load.object.hash(&mut hasher);
    load.sizes.hash(&mut hasher);
    load.constants.hash(&mut hasher);
    load.without.hash(&mut hasher);
    hasher.finish()
}

fn forget_programs(directory: &Directory, kind: &str) {
    for name in directory
        .names()
        .iter()
        .filter(|name| name.starts_with(&format!("{LIMITS}_{kind}_")))
    {
        directory.remove(name);
    }
    directory.remove(&format!("{PROGRAMS}/{kind}"));
}

/// Detaches the programs that were attached from this directory, and unpins everything of any layout. Notes about interfaces stay.
pub fn remove_all(directory: &Directory) {
    for name in directory.names() {
        if name.starts_with("link_")
            && let Ok(fd) = directory.get(&name)
        {
            Link::from_fd(fd).detach();
        }
    }
    // The mark is removed first: the rest without it is not a table.
    directory.remove("layout");
    for name in directory.names().iter().filter(|name| !is_note(name)) {
        directory.remove(name);
    }
}

/// Removes the remains of a softswitch from the kernel: programs, maps with all entries, settings of interfaces, and neighbours that the
/// kernel keeps resolved. Media goes to the relay from then on. Returns whether there was anything.
///
/// # Errors
/// A softswitch runs with this directory.
pub fn unload(pin_dir: &Path) -> Result<bool, PlaneError> {
    let Some(directory) = Directory::open_left(pin_dir)? else {
        return Ok(false);
    };
    remove_all(&directory);
    restore_offloads(&directory);
    Netlink::new()?.unmanage_all()?;
    directory.remove_if_empty(true);
    Ok(true)
}

const _: () = assert!(size_of::<detail>() == 64 && size_of::<slot>() == 64);
