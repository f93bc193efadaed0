//! Assigns tiles to senders, in one or two levels of mixers. Inputs are the sources and the mixers' reports on tiles.
//!
//! In one level, a mixer tiles sources into the streams that receivers get. In two levels, mixers tile sources into columns, and another
//! mixer joins columns, one below the other, into those streams. A tile is identified by its stream and its place. In two levels, place `p`
//! is tile `p % places` of the stream's column `p / places`.

use crate::jobs::Job;
use crate::membership::STREAMS;
use crate::tables::Name;
use shunt_latch::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A tile is withdrawn after its source could not be tiled for this long and for [`PICTURES`] frames. A key frame may have to
/// arrive first.
const REFUSED: Duration = Duration::from_secs(3);
const PICTURES: u64 = 3;
/// Delay before a rejected source is tried again, because its encoder may have other settings by then.
const AGAIN: Duration = Duration::from_secs(60);

/// Number of tiles of each stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Tiles of a stream that a mixer makes from sources.
    pub places: u8,
    /// Number of such columns that are joined into a stream; `None`: one level.
    pub columns: Option<u8>,
}

impl Shape {
    /// Returns the number of tiles of a stream.
    ///
    /// # Errors
    /// The number exceeds the range of places; the error has the number.
    pub fn stream(self) -> Result<u8, u32> {
        let count = u32::from(self.places) * u32::from(self.columns.unwrap_or(1));
        u8::try_from(count).map_err(|_| count)
    }
}

/// Position of a tile in its stream, in luma samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub x: u32,
    pub y: u32,
    pub width: u32,
    pub height: u32,
}

/// A mixer's report on a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// `None` until a frame has shown the size.
    pub area: Option<Area>,
    /// Numbers of received frames and of frames that could not be tiled; the reason for the last failure, unless a later frame succeeded.
    pub pictures: u64,
    pub refused: u64,
    pub refusal: Option<String>,
}

/// A mixer's report on a tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub place: u8,
    /// The source's SSRC.
    pub contributor: u32,
    pub shown: Shown,
}

/// State of a source, and the time and number of rejected frames since one was last tiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Watched {
    shown: Shown,
    refused: Option<(Time, u64)>,
}

impl Watched {
    /// Records a report. `Some`: why the source cannot be tiled.
    fn take(&mut self, shown: Shown, now: Time) -> Option<String> {
        let tiled = |shown: &Shown| shown.pictures.saturating_sub(shown.refused);
        if shown.refusal.is_none() || tiled(&shown) != tiled(&self.shown) {
            self.refused = None;
        } else {
            self.refused.get_or_insert((now, self.shown.refused));
        }
        self.shown = shown;
        let (since, count) = self.refused?;
        let stands = now.since(since) >= REFUSED && self.shown.refused.saturating_sub(count) >= PICTURES;
        self.shown.refusal.clone().filter(|_| stands)
    }
}

/// A tile assigned to a sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    pub participant: Name,
    /// SSRC of the sender's video.
    pub source: u32,
    watched: Watched,
}

impl Tile {
    #[must_use]
    pub fn new(participant: Name, source: u32) -> Self {
        Self {
            participant,
            source,
            watched: Watched::default(),
        }
    }

    #[must_use]
    pub fn shown(&self) -> &Shown {
        &self.watched.shown
    }

    fn begin_anew(&mut self) {
        self.watched = Watched::default();
    }
}

/// A column that is joined into a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub ssrc: u32,
    watched: Watched,
}

impl Column {
    #[must_use]
    pub fn new(ssrc: u32) -> Self {
        Self {
            ssrc,
            watched: Watched::default(),
        }
    }
}

/// A stream for receivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    pub ssrc: u32,
    /// By place.
    pub tiles: BTreeMap<u8, Tile>,
    /// In two levels: columns with assigned tiles.
    pub columns: BTreeMap<u8, Column>,
}

/// Description of a stream for its mixer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    pub ssrc: u32,
    pub places: u8,
    pub tiles: Vec<MadeTile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeTile {
    pub place: u8,
    pub participant: Name,
    /// SSRC of the source's packets.
    pub source: u32,
    /// If the source is a column: the participant's SSRC, the index of the tile in the column, and the column's number of tiles.
    pub part: Option<(u32, u8, u8)>,
}

/// A sender with its video stream, or the reason why it cannot be tiled.
pub type Source = (Name, Result<u32, String>);

/// Generates an unused SSRC.
pub type Fresh<'a> = &'a mut dyn FnMut() -> u32;

/// The tiled streams of a conference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiles {
    shape: Shape,
    streams: Vec<Stream>,
    /// Sources that their mixer rejected: the stream, the reason, and the time.
    refused: BTreeMap<Name, (u32, String, Time)>,
    /// Senders of video without a tile, with reasons.
    untiled: BTreeMap<Name, String>,
}

impl Tiles {
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self::restored(shape, Vec::new())
    }

    /// Restores the streams from before a restart.
    #[must_use]
    pub fn restored(shape: Shape, streams: Vec<Stream>) -> Self {
        Self {
            shape,
            streams,
            refused: BTreeMap::new(),
            untiled: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    #[must_use]
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    #[must_use]
    pub fn untiled(&self) -> &BTreeMap<Name, String> {
        &self.untiled
    }

    /// Returns the number of tiles of a stream. Larger shapes are never made.
    fn places(&self) -> u8 {
        self.shape.stream().unwrap_or(u8::MAX)
    }

    /// Returns the column of a place; `None` in one level.
    fn column_at(&self, place: u8) -> Option<u8> {
        self.shape.columns.map(|_| place / self.shape.places.max(1))
    }

    /// Returns the mixer job of a tile.
    fn job_at(&self, stream: usize, place: u8) -> Job {
        self.column_at(place).map_or(Job::Tiles, |column| self.column_job(stream, column))
    }

    #[must_use]
    pub fn column_job(&self, stream: usize, column: u8) -> Job {
        let before = stream * usize::from(self.shape.columns.unwrap_or(0));
        Job::Column(u16::try_from(before + usize::from(column)).unwrap_or(u16::MAX))
    }

    /// Returns the stream and column of a job that makes a column.
    fn place_of(&self, job: Job) -> Option<(usize, u8)> {
        let (Job::Column(number), Some(columns @ 1..)) = (job, self.shape.columns) else {
            return None;
        };
        Some((
            usize::from(number / u16::from(columns)),
            u8::try_from(number % u16::from(columns)).ok()?,
        ))
    }

    /// Returns the wanted jobs of mixers.
    #[must_use]
    pub fn jobs(&self) -> BTreeSet<Job> {
        let has_tiles = self.streams.iter().any(|stream| !stream.tiles.is_empty());
        let columns = self.streams.iter().enumerate().flat_map(|(at, stream)| {
            let columns = stream.columns.keys();
            columns.map(move |column| self.column_job(at, *column))
        });
        columns.chain(has_tiles.then_some(Job::Tiles)).collect()
    }

    /// Returns the senders with a tile, and the mixer job of each.
    pub fn sources(&self) -> impl Iterator<Item = (&Name, Job)> {
        let streams = self.streams.iter().enumerate();
        streams.flat_map(move |(at, stream)| {
            let tiles = stream.tiles.iter();
            tiles.map(move |(place, tile)| (&tile.participant, self.job_at(at, *place)))
        })
    }

    /// Returns the SSRCs of a job's streams.
    #[must_use]
    pub fn ssrcs(&self, job: Job) -> Vec<u32> {
        self.made(job).into_iter().map(|made| made.ssrc).collect()
    }

    /// Returns the streams of a job.
    #[must_use]
    pub fn made(&self, job: Job) -> Vec<Made> {
        match (job, self.place_of(job)) {
            (Job::Tiles, _) => self.streams.iter().map(|stream| self.joined(stream)).collect(),
            (_, Some((at, column))) => {
                let stream = self.streams.get(at);
                stream.and_then(|stream| self.column(stream, column)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn joined(&self, stream: &Stream) -> Made {
        let tile = |(place, tile): (&u8, &Tile)| {
            let places = self.shape.places;
            let column = self.column_at(*place).map(|column| stream.columns.get(&column));
            let (source, part) = match column {
                None => (tile.source, None),
                Some(column) => (column?.ssrc, Some((tile.source, place % places, places))),
            };
            Some(MadeTile {
                place: *place,
                participant: tile.participant.clone(),
                source,
                part,
            })
        };
        Made {
            ssrc: stream.ssrc,
            places: self.places(),
            tiles: stream.tiles.iter().filter_map(tile).collect(),
        }
    }

    fn column(&self, stream: &Stream, column: u8) -> Option<Made> {
        let own = stream.tiles.iter().filter(|(place, _)| self.column_at(**place) == Some(column));
        let tile = |(place, tile): (&u8, &Tile)| MadeTile {
            place: place % self.shape.places,
            participant: tile.participant.clone(),
            source: tile.source,
            part: None,
        };
        Some(Made {
            ssrc: stream.columns.get(&column)?.ssrc,
            places: self.shape.places,
            tiles: own.map(tile).collect(),
        })
    }

    /// Assigns tiles to sources and withdraws the tiles of former sources. A source keeps its place. Returns whether anything has changed.
    pub fn assign(&mut self, sources: &[Source], fresh: Fresh, now: Time) -> bool {
        let before = (self.streams.clone(), self.untiled.clone());
        self.refused.retain(|name, (source, _, at)| {
            let sent = sources.iter().any(|(one, sent)| one == name && sent.as_ref() == Ok(source));
            sent && now.since(*at) < AGAIN
        });
        self.untiled.clear();
        let mut wanted: BTreeMap<Name, u32> = BTreeMap::new();
        for (name, source) in sources {
            match (source, self.refused.get(name)) {
                (Err(reason), _) | (Ok(_), Some((_, reason, _))) => drop(self.untiled.insert(name.clone(), reason.clone())),
                (Ok(source), None) => drop(wanted.insert(name.clone(), *source)),
            }
        }
        for stream in &mut self.streams {
            stream.tiles.retain(|_, tile| wanted.contains_key(&tile.participant));
            for tile in stream.tiles.values_mut() {
                if let Some(source) = wanted.remove(&tile.participant)
                    && source != tile.source
                {
                    *tile = Tile::new(tile.participant.clone(), source);
                }
            }
        }
        for (name, _) in sources {
            let Some(source) = wanted.remove(name) else { continue };
            if !self.give(name, source, fresh) {
                let most = usize::from(self.places()) * STREAMS;
                self.untiled.insert(name.clone(), format!("all {most} tiles are taken"));
            }
        }
        while self.streams.len() > 1 && self.streams.last().is_some_and(|stream| stream.tiles.is_empty()) {
            self.streams.pop();
        }
        let places = self.shape.places.max(1);
        for stream in &mut self.streams {
            let used: BTreeSet<u8> = stream.tiles.keys().map(|place| place / places).collect();
            stream.columns.retain(|column, _| used.contains(column));
        }
        before != (self.streams.clone(), self.untiled.clone())
    }

    /// Assigns the first free place. Returns whether there was one.
    fn give(&mut self, name: &Name, source: u32, fresh: Fresh) -> bool {
        let places = self.places();
        let free = |stream: &Stream| (0..places).find(|place| !stream.tiles.contains_key(place));
        if self.streams.iter().all(|stream| free(stream).is_none()) && self.streams.len() < STREAMS {
            let ssrc = fresh();
            self.streams.push(Stream {
                ssrc,
                tiles: BTreeMap::new(),
                columns: BTreeMap::new(),
            });
        }
        let found = self.streams.iter().enumerate().find_map(|(at, stream)| Some((at, free(stream)?)));
        let Some((at, place)) = found else { return false };
        let column = self.column_at(place);
        let Some(stream) = self.streams.get_mut(at) else { return false };
        if let Some(column) = column {
            stream.columns.entry(column).or_insert_with(|| Column::new(fresh()));
        }
        stream.tiles.insert(place, Tile::new(name.clone(), source));
        true
    }

    /// Gives a job's streams new SSRCs and the same tiles, because another mixer or a restarted one makes them.
    pub fn renew(&mut self, job: Job, fresh: Fresh) {
        let (is_one_level, column) = (self.shape.columns.is_none(), self.place_of(job));
        for (at, stream) in self.streams.iter_mut().enumerate() {
            match (job, column) {
                (Job::Tiles, _) => {
                    stream.ssrc = fresh();
                    stream.columns.values_mut().for_each(|column| column.watched = Watched::default());
                    for tile in stream.tiles.values_mut() {
                        tile.watched.shown.area = None;
                        if is_one_level {
                            tile.begin_anew();
                        }
                    }
                }
                (_, Some((of, column))) if of == at => renew_column(stream, self.shape.places, column, fresh),
                _ => {}
            }
        }
    }

    /// Records a mixer's report on a stream's tiles. Returns the senders that lose their tiles, with reasons.
    pub fn take(&mut self, job: Job, ssrc: u32, said: Vec<Said>, fresh: Fresh, now: Time) -> Vec<(Name, String)> {
        let lost = match (job, self.shape.columns, self.place_of(job)) {
            (Job::Tiles, Some(_), _) => self.take_joined(ssrc, said, fresh, now),
            (Job::Tiles, None, _) => {
                let stream = self.streams.iter_mut().find(|stream| stream.ssrc == ssrc);
                stream.map_or_else(Vec::new, |stream| take_sources(stream, 0, said, true, now))
            }
            (_, _, Some((at, column))) => {
                let places = self.shape.places;
                let stream = self.streams.get_mut(at);
                let own = |stream: &&mut Stream| stream.columns.get(&column).is_some_and(|column| column.ssrc == ssrc);
                stream.filter(own).map_or_else(Vec::new, |stream| {
                    let lost = take_sources(stream, places.saturating_mul(column), said, false, now);
                    // The mixer reports nothing on the sources while the column itself cannot be joined.
                    let is_refused = stream.columns.get(&column).is_some_and(|column| column.watched.refused.is_some());
                    if is_refused { Vec::new() } else { lost }
                })
            }
            _ => Vec::new(),
        };
        let mut named = Vec::new();
        for (name, source, reason) in lost {
            self.refused.insert(name.clone(), (source, reason.clone(), now));
            named.push((name, reason));
        }
        named
    }

    /// Records a report on the columns of a stream, tile by tile.
    fn take_joined(&mut self, ssrc: u32, said: Vec<Said>, fresh: Fresh, now: Time) -> Vec<Lost> {
        let places = self.shape.places.max(1);
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.ssrc == ssrc) else {
            return Vec::new();
        };
        let mut columns: BTreeMap<u8, Shown> = BTreeMap::new();
        for one in said {
            let tile = stream.tiles.get_mut(&one.place);
            if let Some(tile) = tile.filter(|tile| tile.source == one.contributor) {
                tile.watched.shown.area = one.shown.area;
                columns.entry(one.place / places).or_insert(one.shown);
            }
        }
        let mut lost = Vec::new();
        for (number, shown) in columns {
            let Some(column) = stream.columns.get_mut(&number) else { continue };
            let refusal = column.watched.take(shown, now);
            if column.watched.refused.is_none() {
                continue;
            }
            // The result of a column's first source says nothing about the others.
            own(&mut stream.tiles, number, places).for_each(|tile| tile.watched.refused = None);
            let Some(reason) = refusal else { continue };
            let tiled = own(&mut stream.tiles, number, places).filter(|tile| tile.shown().pictures > 0 && tile.shown().refusal.is_none());
            lost.extend(tiled.map(|tile| (tile.participant.clone(), tile.source, reason.clone())));
            renew_column(stream, places, number, fresh);
        }
        lost
    }
}

/// A sender that loses its tile, with the stream and the reason.
type Lost = (Name, u32, String);

/// Returns the tiles of a column.
fn own(tiles: &mut BTreeMap<u8, Tile>, column: u8, places: u8) -> impl Iterator<Item = &mut Tile> {
    let first = column.saturating_mul(places);
    tiles.range_mut(first..=first.saturating_add(places - 1)).map(|(_, tile)| tile)
}

/// Restarts a column with the same tiles.
fn renew_column(stream: &mut Stream, places: u8, number: u8, fresh: Fresh) {
    if let Some(column) = stream.columns.get_mut(&number) {
        *column = Column::new(fresh());
    }
    own(&mut stream.tiles, number, places.max(1)).for_each(Tile::begin_anew);
}

/// Records the tiling mixer's report on sources, from a place on. `area`: the reported area of a tile refers to the stream, not to a
/// column.
fn take_sources(stream: &mut Stream, first: u8, said: Vec<Said>, area: bool, now: Time) -> Vec<Lost> {
    let mut lost = Vec::new();
    for one in said {
        let tile = one.place.checked_add(first).and_then(|place| stream.tiles.get_mut(&place));
        let Some(tile) = tile.filter(|tile| tile.source == one.contributor) else {
            continue;
        };
        let mut shown = one.shown;
        if !area {
            shown.area = tile.shown().area;
        }
        if let Some(reason) = tile.watched.take(shown, now) {
            lost.push((tile.participant.clone(), tile.source, reason));
        }
    }
    lost
}
