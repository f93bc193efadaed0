//! The conference maps: their names, sizes and layout, and the programs over them.

use crate::engine::MAX_NODES;
use crate::sequences::TRACKS;
use shunt_abi::replicate::{conference_mark, layout};
use shunt_xdp::{Constant, Directory, Load, Loaded, Shared};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};

/// All conference maps. The one with the layout's mark is first: pinned last, it says that the others are there.
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
/// The largest number of rewrites: the words of their lists are numbered with 32 bits.
pub const MAX_COPIES: usize = 1 << 24;

/// The sizes of the maps, as they were made.
pub struct Mark {
    pub streams: u32,
    /// Rows of `c_copies`: one more than rewrites.
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

/// The rows of each map for this many rewrites (at most `MAX_COPIES`): as many streams, and for each some nodes and words of lists;
/// sequence numbers are rewritten for up to `TRACKS` streams and receivers.
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

/// How the programs are loaded.
pub struct Options<'a> {
    /// Where the maps are pinned.
    pub directory: &'a Directory,
    /// Rewrites that there is to be room for.
    pub copies: usize,
    /// The relay's maps, which the programs share.
    pub relay: &'a BTreeMap<String, OwnedFd>,
    /// For `.rodata` of the object.
    pub constants: &'a [Constant],
    /// Programs of the object to leave out.
    pub without: &'a [&'a str],
}

impl Options<'_> {
    /// Load the programs over the relay's maps; on the conference maps that are pinned, or on new ones, which are pinned. Maps of another
    /// layout make room.
    ///
    /// # Errors
    /// When the kernel does not load or pin them.
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

    /// The maps that a former process has pinned; none when they are not all there, or of another layout.
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

/// Forget the maps for good, once no interface has the programs any more.
pub fn unpin(directory: &Directory) {
    for name in MAPS {
        directory.remove(name);
    }
}
