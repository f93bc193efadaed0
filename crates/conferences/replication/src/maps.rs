//! The conference maps: names, sizes and layout, and the programs that use them.

use crate::engine::MAX_NODES;
use crate::sequences::TRACKS;
use shunt_abi::replicate::{conference_mark, layout};
use shunt_xdp::{Constant, Directory, Load, Loaded, Shared};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};

/// All conference maps. The one with the layout's mark is first in the list and pinned last: its presence shows that all others exist.
pub const MAPS: [&str; 18] = [
    "c_layout",
    "c_index",
    "c_streams",
    "c_copies",
    "c_wides",
    "c_lists",
    "c_nodes",
    "c_trees",
    "c_prunes",
    "c_groups",
    "c_outputs",
    "c_devices",
    "c_agent",
    "c_agent_counts",
    "c_layers",
    "c_tracks",
    "c_receivers",
    "c_receptions",
];
const MARK: &str = MAPS[0];
const MAGIC: u32 = layout::CONFERENCE_MAGIC.0;
const VERSION: u32 = layout::CONFERENCE_VERSION.0;
/// Nodes for each rewrite: a receiver has one in the tree of each quality that it gets.
const NODES: usize = 4;
/// Words of lists for each rewrite.
const WORDS: usize = 16;
/// The largest number of rewrites, because 32 bits number the words of their lists.
pub const MAX_COPIES: usize = 1 << 24;

/// The sizes with which the maps were made.
pub struct Mark {
    pub streams: u32,
    /// Rows of `c_copies`: rewrites plus one.
    pub copies: u32,
    pub words: u32,
    /// Rows of `c_tracks` and `c_receivers`.
    pub tracks: u32,
}

impl From<conference_mark> for Mark {
    fn from(mark: conference_mark) -> Self {
        Self {
            streams: mark.streams,
            copies: mark.copies,
            words: mark.words,
            tracks: mark.tracks,
        }
    }
}

pub(crate) fn most_nodes(rows: usize) -> usize {
    rows.min(MAX_NODES)
}

/// Returns the rows of each map for this many rewrites (at most `MAX_COPIES`): as many streams, and for each some nodes and words of lists.
/// Sequence numbers are rewritten for up to `TRACKS` streams and receivers.
#[must_use]
pub fn sizes(copies: usize) -> BTreeMap<&'static str, usize> {
    let copies = copies.clamp(1, MAX_COPIES);
    let tracks = copies.min(TRACKS) + 1;
    BTreeMap::from([
        ("c_index", copies),
        ("c_streams", copies),
        ("c_receptions", copies),
        ("c_copies", copies + 1),
        ("c_wides", copies + 1),
        ("c_lists", (WORDS * copies).max(64).next_power_of_two()),
        ("c_nodes", most_nodes(NODES * copies)),
        ("c_layers", 8 * copies.clamp(8, 1 << 16)),
        ("c_tracks", tracks),
        ("c_receivers", tracks),
    ])
}

/// How to load the programs.
pub struct Options<'a> {
    /// Folder of the pinned maps.
    pub directory: &'a Directory,
    /// Number of rewrites.
    pub copies: usize,
    /// The relay's maps, which the programs share.
    pub relay: &'a BTreeMap<String, OwnedFd>,
    /// Values for `.rodata` of the object.
    pub constants: &'a [Constant],
    /// Programs of the object to leave out.
    pub without: &'a [&'a str],
}

impl Options<'_> {
    /// Loads the programs with the relay's maps, and with the pinned conference maps or new ones, which are then pinned. Maps of another
    /// layout are replaced.
    ///
    /// # Errors
    /// The kernel does not load or pin them.
    pub fn load(&self) -> shunt_xdp::Result<Loaded> {
        let directory = self.directory;
        let pinned = self.pinned()?;
        if pinned.is_empty() {
            unpin(directory);
        }
        let relay = self.relay.iter().filter(|(name, _)| !name.ends_with(".rodata"));
        let reuse = relay.chain(&pinned).map(|(name, map)| (name.clone(), map.as_fd()));
        let wanted = sizes(self.copies);
        let load = Load {
            name: "replicate",
            object: shunt_abi::REPLICATE_OBJECT,
            sizes: wanted.clone(),
            reuse: reuse.collect(),
            constants: self.constants,
            without: self.without,
        };
        let loaded = load.load()?;
        let mark = Shared::<conference_mark>::map(loaded.map(MARK)?, 1)?;
        if pinned.is_empty() {
            let size = |name: &str| u32::try_from(wanted[name]).unwrap_or(u32::MAX);
            let sizes = conference_mark {
                magic: MAGIC,
                version: VERSION,
                streams: size("c_streams"),
                copies: size("c_copies"),
                words: size("c_lists"),
                tracks: size("c_tracks"),
            };
            mark.store(0, &sizes);
            for name in MAPS.iter().rev() {
                directory.pin(name, loaded.map(name)?)?;
            }
        }
        let room = mark.load(0).copies.saturating_sub(1);
        if room as usize != self.copies {
            tracing::warn!(
                "the conference maps pinned in {} have room for {room} rewrites; {} takes effect after they are unloaded",
                directory.path().display(),
                self.copies
            );
        }
        Ok(loaded)
    }

    /// Opens the maps that a former process has pinned; `None` if one is missing, or they have another layout.
    fn pinned(&self) -> shunt_xdp::Result<BTreeMap<String, OwnedFd>> {
        let directory = self.directory;
        if !directory.has(MARK) {
            return Ok(BTreeMap::new());
        }
        let mark = Shared::<conference_mark>::map(directory.get(MARK)?, 1)?.load(0);
        if (mark.magic, mark.version) != (MAGIC, VERSION) {
            tracing::warn!(
                "the conference maps pinned in {} have layout {}, this program has {VERSION}: they are removed, and conferences pause until \
                 the agent has written them again",
                directory.path().display(),
                mark.version
            );
            return Ok(BTreeMap::new());
        }
        MAPS.iter().map(|name| Ok(((*name).to_owned(), directory.get(name)?))).collect()
    }
}

/// Removes the maps, after the programs are detached from all interfaces.
pub fn unpin(directory: &Directory) {
    for name in MAPS {
        directory.remove(name);
    }
}
