//! The dependency descriptor (AV1 RTP payload format, appendix A): mandatory fields, template structure, which layers a template belongs to.
//!
//! Template ids are not fixed: a key frame whose structure changed moves `template_id_offset` by the number of templates of the old one.
//! [`LayerTable`] therefore keeps the rows of both, and those that the same structure would have after the next move.

mod bits;

use crate::error::{MediaError, What};
use bits::Bits;
use std::collections::BTreeMap;

/// Template ids there are.
pub const IDS: usize = 64;

/// What a template is to a decode target (DTI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indication {
    NotPresent,
    Discardable,
    Switch,
    Required,
}

/// What every descriptor begins with, and all that a data plane has to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mandatory {
    pub start: bool,
    pub end: bool,
    pub template_id: u8,
    pub frame_number: u16,
}

/// A template: layers, an indication for each decode target, frame differences, a difference for each chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub spatial: u8,
    pub temporal: u8,
    pub indications: Vec<Indication>,
    pub frame_differences: Vec<u16>,
    pub chain_differences: Vec<u8>,
}

/// A template dependency structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Structure {
    pub offset: u8,
    pub templates: Vec<Template>,
    /// The chain of each decode target; empty without chains.
    pub protected_by: Vec<u8>,
    /// (spatial, temporal) layer of each decode target.
    pub targets: Vec<(u8, u8)>,
    /// (width, height) of each spatial layer, or nothing.
    pub resolutions: Vec<(u32, u32)>,
}

/// A whole descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub mandatory: Mandatory,
    /// The frame's own template, with custom values put in.
    pub template: Template,
    /// When the packet carried one.
    pub structure: Option<Structure>,
    /// Bit n: decode target n is still sent; `None`: nothing new was said.
    pub active_targets: Option<u32>,
}

impl Mandatory {
    /// # Errors
    /// Fewer than three octets.
    pub fn parse(data: &[u8]) -> Result<Self, MediaError> {
        let &[first, high, low, ..] = data else {
            return Err(MediaError::new(What::Descriptor, data.len()));
        };
        Ok(Self {
            start: first & 0x80 != 0,
            end: first & 0x40 != 0,
            template_id: first & 0x3F,
            frame_number: u16::from_be_bytes([high, low]),
        })
    }
}

/// Whether a descriptor carries a template structure.
#[must_use]
pub fn has_structure(data: &[u8]) -> bool {
    data.get(3).is_some_and(|octet| octet & 0x80 != 0)
}

impl Template {
    /// Bit n: decode target n needs frames of this template.
    #[must_use]
    pub fn needed_by(&self) -> u32 {
        self.mask(|indication| indication != Indication::NotPresent)
    }

    /// Bit n: whoever can decode a frame of this template can decode all that decode target n needs from there on.
    #[must_use]
    pub fn switches(&self) -> u32 {
        self.mask(|indication| indication == Indication::Switch)
    }

    fn mask(&self, holds: impl Fn(Indication) -> bool) -> u32 {
        let targets = self.indications.iter().enumerate();
        targets.filter(|(_, one)| holds(**one)).map(|(target, _)| 1 << target).sum()
    }
}

impl Structure {
    /// The template with this id.
    ///
    /// # Errors
    /// There is none.
    pub fn template(&self, id: u8) -> Result<&Template, MediaError> {
        let index = usize::from(id.wrapping_sub(self.offset)) % IDS;
        self.templates.get(index).ok_or(MediaError::new(What::Template, 0))
    }

    /// Whether each decode target needs all that the one below it needs (L1Tn; not S3T3), so that a template's quality is the lowest target
    /// that needs it.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        let all = ((1u64 << self.targets.len()) - 1) as u32;
        self.templates
            .iter()
            .map(Template::needed_by)
            .all(|mask| mask == 0 || mask == all & !((mask & mask.wrapping_neg()) - 1))
    }
}

impl Descriptor {
    /// Read a whole descriptor. `known` is the stream's structure so far.
    ///
    /// # Errors
    /// It is cut short, names a template that is not there, or comes before any structure.
    pub fn parse(data: &[u8], known: Option<&Structure>) -> Result<Self, MediaError> {
        let mandatory = Mandatory::parse(data)?;
        let mut bits = Bits::new(data, 3);
        let flags = if data.len() == 3 { 0 } else { bits.take(5)? };
        let structure = (flags & 16 != 0).then(|| structure(&mut bits)).transpose()?;
        let using = structure.as_ref().or(known).ok_or(MediaError::new(What::Structure, 0))?;
        let count = using.targets.len();
        let mut active_targets = structure.is_some().then(|| ((1u64 << count) - 1) as u32);
        if flags & 8 != 0 {
            active_targets = Some(bits.take(count as u32)?);
        }
        let mut template = using.template(mandatory.template_id)?.clone();
        if flags & 4 != 0 {
            template.indications = indications(&mut bits, count)?;
        }
        if flags & 2 != 0 {
            template.frame_differences.clear();
            loop {
                let size = bits.take(2)?;
                if size == 0 {
                    break;
                }
                template.frame_differences.push(bits.take(4 * size)? as u16 + 1);
            }
        }
        if flags & 1 != 0 {
            for difference in &mut template.chain_differences {
                *difference = bits.take(8)? as u8;
            }
        }
        Ok(Self {
            mandatory,
            template,
            structure,
            active_targets,
        })
    }
}

fn indications(bits: &mut Bits, count: usize) -> Result<Vec<Indication>, MediaError> {
    let one = |bits: &mut Bits| {
        Ok(match bits.take(2)? {
            0 => Indication::NotPresent,
            1 => Indication::Discardable,
            2 => Indication::Switch,
            _ => Indication::Required,
        })
    };
    (0..count).map(|_| one(bits)).collect()
}

fn structure(bits: &mut Bits) -> Result<Structure, MediaError> {
    let offset = bits.take(6)? as u8;
    let count = bits.take(5)? as usize + 1;
    let mut templates = layers(bits)?;
    for template in &mut templates {
        template.indications = indications(bits, count)?;
    }
    for template in &mut templates {
        while bits.take(1)? != 0 {
            template.frame_differences.push(bits.take(4)? as u16 + 1);
        }
    }
    let chains = bits.below(count as u32 + 1)?;
    let mut protected_by = Vec::new();
    if chains > 0 {
        protected_by = (0..count)
            .map(|_| Ok(bits.below(chains)? as u8))
            .collect::<Result<_, MediaError>>()?;
        for template in &mut templates {
            template.chain_differences = (0..chains).map(|_| Ok(bits.take(4)? as u8)).collect::<Result<_, MediaError>>()?;
        }
    }
    let highest = |target: usize, layer: fn(&Template) -> u8| {
        let needed = templates.iter().filter(|one| one.indications[target] != Indication::NotPresent);
        needed.map(layer).max().unwrap_or(0)
    };
    let targets = (0..count)
        .map(|target| (highest(target, |one| one.spatial), highest(target, |one| one.temporal)))
        .collect();
    let mut resolutions = Vec::new();
    if bits.take(1)? != 0 {
        for _ in 0..=templates.last().map_or(0, |one| one.spatial) {
            resolutions.push((bits.take(16)? + 1, bits.take(16)? + 1));
        }
    }
    Ok(Structure {
        offset,
        templates,
        protected_by,
        targets,
        resolutions,
    })
}

/// The templates of a structure with their layers, and nothing else yet.
fn layers(bits: &mut Bits) -> Result<Vec<Template>, MediaError> {
    let (mut spatial, mut temporal) = (0, 0);
    let mut templates = Vec::new();
    loop {
        templates.push(Template {
            spatial,
            temporal,
            indications: Vec::new(),
            frame_differences: Vec::new(),
            chain_differences: Vec::new(),
        });
        if templates.len() > IDS {
            return Err(MediaError::new(What::Template, 0));
        }
        match bits.take(2)? {
            0 => {}
            1 => temporal += 1,
            2 => (spatial, temporal) = (spatial + 1, 0),
            _ => return Ok(templates),
        }
    }
}

/// A row of the layer table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Bit n: decode target n gets the packet.
    pub needed_by: u32,
    /// Bit n: who can decode the frame can decode all of target n from there on.
    pub switches: u32,
}

/// A template without a row goes to everybody: a packet too many does less harm than one too few.
pub const UNKNOWN: Layer = Layer {
    needed_by: u32::MAX,
    switches: 0,
};

/// For each template id, which decode targets need it.
///
/// Rows of the structure before stay, because late packets still ask for them; rows for the ids that the same structure would have after
/// the next move of the offset are in before the first packet that needs them.
#[derive(Clone, Debug, Default)]
pub struct LayerTable {
    pub structure: Option<Structure>,
    pub rows: BTreeMap<u8, Layer>,
    before: BTreeMap<u8, Layer>,
}

impl LayerTable {
    /// The row of a template, or what holds where none is.
    #[must_use]
    pub fn layer(&self, template_id: u8) -> Layer {
        self.rows.get(&template_id).copied().unwrap_or(UNKNOWN)
    }

    /// Take a structure in; returns the rows that change, `None` for a row that goes.
    pub fn see(&mut self, structure: Structure) -> BTreeMap<u8, Option<Layer>> {
        if let Some(old) = &self.structure
            && old.offset != structure.offset
        {
            self.before = rows(old, usize::from(old.offset));
        }
        let mut now = rows(&structure, usize::from(structure.offset) + structure.templates.len());
        now.extend(&self.before);
        now.extend(rows(&structure, usize::from(structure.offset)));
        self.structure = Some(structure);
        let mut changes: BTreeMap<_, _> = self.rows.keys().filter(|id| !now.contains_key(id)).map(|id| (*id, None)).collect();
        changes.extend(
            now.iter()
                .filter(|(id, layer)| self.rows.get(id) != Some(layer))
                .map(|(id, layer)| (*id, Some(*layer))),
        );
        self.rows = now;
        changes
    }
}

fn rows(structure: &Structure, offset: usize) -> BTreeMap<u8, Layer> {
    let row = |(index, template): (usize, &Template)| {
        let layer = Layer {
            needed_by: template.needed_by(),
            switches: template.switches(),
        };
        (((offset + index) % IDS) as u8, layer)
    };
    structure.templates.iter().enumerate().map(row).collect()
}
