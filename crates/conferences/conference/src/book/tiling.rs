//! Tiled streams: the requested settings, descriptions for mixers, and mixers' reports. [`crate::tiles`] assigns the tiles.

use super::kept::{KeptStream, KeptTiling};
use super::wanted::check_name;
use super::{Book, Level, Random, Room, Turn};
use crate::adaptation::Medium;
use crate::jobs::Job;
use crate::mixer::{
    Description, Stream as DescribedStream, Tile as DescribedTile, TileState, TiledStream as SaidStream, Tiling as DescribedTiling, Tilings,
};
use crate::participant::{Leg, Participant};
use crate::payload_types::PayloadType;
use crate::tables::Name;
use crate::tiles::{Column, Made, MadeTile, Shape, Source, Stream, Tile, Tiles};
use crate::tiling::Tiling as Wanted;
use shunt_admin_model::{Failure, FailureKind, TiledCodec, TiledColumn, TiledStream, TilingWish, Untiled};
use shunt_net::Endpoint;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

/// Tiles of a CIF picture, and the default for a column and a grid.
const QUARTERS: u8 = 4;
const COLUMN: u8 = 15;
const GRID: u8 = 16;

/// The tiled streams of a conference, except their tiles.
#[derive(Clone, Debug)]
pub struct Tiling {
    wish: TilingWish,
    /// Why no mixer has a job.
    problems: BTreeMap<Job, String>,
}

fn codec(wish: &TilingWish) -> &'static str {
    match wish.codec {
        TiledCodec::H261 => "H261/90000",
        TiledCodec::H264 => "H264/90000",
        TiledCodec::H265 => "H265/90000",
    }
}

fn payload_type(wish: &TilingWish) -> PayloadType {
    PayloadType {
        number: wish.payload_type.unwrap_or(match wish.codec {
            TiledCodec::H261 => 31,
            TiledCodec::H264 => 96,
            TiledCodec::H265 => 97,
        }),
        codec: codec(wish).to_owned(),
        parameters: String::new(),
    }
}

/// Returns the numbers of tiles.
///
/// # Errors
/// The number is not possible.
fn shape(wish: &TilingWish) -> Result<Shape, String> {
    let shape = Shape {
        places: wish.places.unwrap_or(match wish.codec {
            TiledCodec::H261 => QUARTERS,
            TiledCodec::H264 => COLUMN,
            TiledCodec::H265 => GRID,
        }),
        columns: wish.columns,
    };
    match (wish.codec, shape) {
        (TiledCodec::H261, Shape { columns: Some(_), .. }) => {
            Err("columns: a CIF picture of H.261 cannot grow, so nothing is joined to it".to_owned())
        }
        (TiledCodec::H265, Shape { columns: Some(_), .. }) => Err("columns: those of H.264 alone are joined".to_owned()),
        (TiledCodec::H261, Shape { places, .. }) if places != QUARTERS => {
            Err(format!("places {places}: a CIF picture of H.261 has {QUARTERS}"))
        }
        (_, Shape { places: 0, .. }) => Err("places 0: a column or grid has one at least".to_owned()),
        (
            _,
            Shape {
                columns: Some(columns @ (0 | 1)),
                ..
            },
        ) => Err(format!("columns {columns}: two at least are joined")),
        _ => match shape.stream() {
            Ok(_) => Ok(shape),
            Err(count) => Err(format!("columns: {count} tiles of a stream are more than {}", u8::MAX)),
        },
    }
}

/// # Errors
/// The settings are invalid.
fn check(wish: &TilingWish) -> Result<Wanted, Failure> {
    let invalid = |text: String| Failure::new(FailureKind::Invalid, text);
    let payload_type = payload_type(wish);
    if payload_type.number > 127 {
        return Err(invalid(format!("payload_type {} is not in 0..127", payload_type.number)));
    }
    let shape = shape(wish).map_err(invalid)?;
    let names = wish.receivers.as_ref().map(|names| {
        let names = names.iter().map(|name| check_name("receiver", &name.as_text()));
        names.collect::<Result<_, _>>()
    });
    Ok(Wanted {
        payload_type,
        receivers: names.transpose()?,
        tiles: Tiles::new(shape),
    })
}

/// Returns whether two requests produce the same streams, whatever their receivers.
fn makes_the_same(one: &TilingWish, other: &TilingWish) -> bool {
    let receivers = one.receivers.clone();
    TilingWish {
        receivers,
        ..other.clone()
    } == *one
}

/// Generates SSRCs that are neither in use nor were used before.
fn fresh(random: &mut Random, mut used: HashSet<u32>) -> impl FnMut() -> u32 {
    move || {
        loop {
            let ssrc = random.next();
            if used.insert(ssrc) {
                return ssrc;
            }
        }
    }
}

fn keep(wish: &TilingWish, tiles: &Tiles) -> KeptTiling {
    let stream = |stream: &Stream| KeptStream {
        ssrc: stream.ssrc,
        tiles: stream
            .tiles
            .iter()
            .map(|(place, tile)| (*place, tile.participant.to_string(), tile.source))
            .collect(),
        columns: stream.columns.iter().map(|(number, column)| (*number, column.ssrc)).collect(),
    };
    KeptTiling {
        wish: wish.clone(),
        streams: tiles.streams().iter().map(stream).collect(),
    }
}

fn restored(kept: KeptStream) -> Stream {
    let tiles = kept.tiles.into_iter();
    Stream {
        ssrc: kept.ssrc,
        tiles: tiles
            .map(|(place, participant, source)| (place, Tile::new(participant.into(), source)))
            .collect(),
        columns: kept.columns.into_iter().map(|(number, ssrc)| (number, Column::new(ssrc))).collect(),
    }
}

fn describe(wish: &TilingWish, made: Vec<Made>, from: Endpoint) -> DescribedTiling {
    let tile = |tile: MadeTile| DescribedTile {
        place: tile.place,
        participant: tile.participant.to_string(),
        source: tile.source,
        contributor: tile.part.map(|(contributor, ..)| contributor),
        tile: tile.part.map(|(_, tile, _)| tile),
        tiles: tile.part.map(|(.., tiles)| tiles),
        predicted: wish.predicted,
    };
    let stream = |stream: Made| DescribedStream {
        ssrc: stream.ssrc,
        places: stream.places,
        tiles: stream.tiles.into_iter().map(tile).collect(),
    };
    DescribedTiling {
        from,
        to: from,
        codec: wish.codec,
        payload_type: payload_type(wish).number,
        streams: made.into_iter().map(stream).collect(),
    }
}

impl Room {
    /// Sets the requested tiled streams, or none. Streams that differ only in their receivers continue.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn set_tiling(&mut self, turn: &mut Turn, wish: Option<TilingWish>) -> Result<(), Failure> {
        let mut wanted = wish.as_ref().map(check).transpose()?;
        let before = self.tiling.take();
        let goes_on = before.as_ref().zip(wish.as_ref());
        if goes_on.is_some_and(|(before, wish)| makes_the_same(&before.wish, wish)) {
            if let Some((wanted, before)) = wanted.as_mut().zip(self.conference.tiling.take()) {
                wanted.tiles = before.tiles;
            }
        } else if before.is_some() {
            self.say_over(turn, Job::Tiles);
        }
        self.conference.tiling = wanted;
        self.conference.settle();
        self.tiling = wish.map(|wish| Tiling {
            wish,
            problems: BTreeMap::new(),
        });
        Ok(())
    }

    #[must_use]
    pub fn keep_tiling(&self) -> Option<KeptTiling> {
        Some(keep(&self.tiling.as_ref()?.wish, self.tiles()?))
    }

    /// Restores tiled streams from the stored state.
    ///
    /// # Errors
    /// The stored state is invalid.
    pub fn restore_tiling(&mut self, turn: &mut Turn, kept: KeptTiling) -> Result<(), Failure> {
        self.set_tiling(turn, Some(kept.wish))?;
        if let Some(tiling) = &mut self.conference.tiling {
            let streams = kept.streams.into_iter().map(restored);
            tiling.tiles = Tiles::restored(tiling.tiles.shape(), streams.collect());
        }
        Ok(())
    }

    #[must_use]
    pub fn tiles(&self) -> Option<&Tiles> {
        self.conference.tiling.as_ref().map(|tiling| &tiling.tiles)
    }

    /// Records why no mixer has a job.
    pub fn lacks_mixer(&mut self, job: Job, reason: String) {
        if let Some(tiling) = self.tiling.as_mut().filter(|_| job.medium() == Medium::Video) {
            tiling.problems.insert(job, reason);
        }
    }

    /// Describes a job of tiling for its mixer. `port`: the relay port that copies come from. `None`: no tiled streams are wanted.
    pub fn describe_tiles(&self, job: Job, address: IpAddr, port: u16) -> Option<Description> {
        let (tiling, made) = (self.tiling.as_ref()?, self.tiles()?.made(job));
        let is_over = made.is_empty() && job != Job::Tiles;
        (!is_over).then(|| Description::Tiles(describe(&tiling.wish, made, Endpoint::new(address, port))))
    }

    /// Gives the streams new SSRCs and the same tiles, because another mixer or a restarted one makes them.
    pub(super) fn renew_tiles(&mut self, random: &mut Random, job: Job) {
        let mut fresh = fresh(random, self.video_ssrcs());
        if let Some(tiling) = &mut self.conference.tiling {
            tiling.tiles.renew(job, &mut fresh);
            self.conference.settle();
        }
    }

    fn video_ssrcs(&self) -> HashSet<u32> {
        let legs = self.conference.participants.iter().flat_map(|one| &one.legs);
        let video = legs.filter(|((medium, _), _)| *medium == Medium::Video);
        let sent = video.flat_map(|(_, leg)| leg.ssrcs.iter().copied());
        let streams = self.tiles().into_iter().flat_map(Tiles::streams);
        let made = streams.flat_map(|stream| stream.columns.values().map(|column| column.ssrc).chain([stream.ssrc]));
        sent.chain(made).collect()
    }

    /// Returns the senders of video, in the order in which they joined.
    fn sources(&self) -> Vec<Source> {
        let people = self.conference.participants.iter().filter(|one| one.mixer.is_none());
        people
            .filter_map(|one| {
                let leg = one.leg(Medium::Video).filter(|leg| leg.sends && leg.source.is_some())?;
                let ssrc = leg.picture()?;
                Some((one.name.clone(), self.source(one, leg, ssrc)))
            })
            .collect()
    }

    /// Returns the stream, or why its video cannot be tiled, whatever its coding.
    fn source(&self, one: &Participant, leg: &Leg, ssrc: u32) -> Result<u32, String> {
        if let Some(owner) = self.conference.conflict(&one.name, Medium::Video, ssrc) {
            return Err(format!("its SSRC is {owner}'s"));
        }
        if one.encrypted {
            return Err("its media are encrypted".to_owned());
        }
        let wanted = self.tiling.as_ref().map_or("", |tiling| codec(&tiling.wish));
        let is_wanted = |one: &PayloadType| one.codec.eq_ignore_ascii_case(wanted);
        let sent = self.leg(&one.name, (Medium::Video, 0)).and_then(|leg| leg.payload_type);
        let sent = leg.payload_types.iter().find(|one| Some(one.number) == sent);
        match sent {
            Some(sent) if !is_wanted(sent) => Err(format!("it sends {}, and not {wanted}", sent.codec)),
            None if !leg.payload_types.is_empty() && !leg.payload_types.iter().any(is_wanted) => Err(format!("it has not named {wanted}")),
            _ => Ok(ssrc),
        }
    }
}

impl Book {
    /// Returns the number of conferences with tiled video, and of participants that get it.
    #[must_use]
    pub fn tiled_sizes(&self) -> (usize, usize) {
        let rooms = self.rooms.values().filter(|room| room.placed.contains_key(&Job::Tiles));
        rooms.fold((0, 0), |(count, sum), room| {
            let tiled = room.conference.participants.iter().filter(|one| one.tiled);
            (count + 1, sum + tiled.count())
        })
    }

    /// Sets the requested tiled streams of a conference.
    ///
    /// # Errors
    /// There is no such conference, the settings are invalid, or no mixer is configured.
    pub fn set_tiling(&mut self, turn: &mut Turn, conference: &str, wish: TilingWish) -> Result<shunt_admin_model::Tiling, Failure> {
        let room = self.room_mut(conference)?;
        if !room.conference.mixing {
            return Err(Failure::new(FailureKind::Invalid, "there is no mixer (conference.mixer)"));
        }
        let wanted = check(&wish)?;
        for receiver in wanted.receivers.iter().flatten().filter_map(|name| room.conference.get(name)) {
            wanted.serves(receiver).map_err(|reason| {
                let text = format!("receivers: {} can be given no tiles: {reason}", receiver.name);
                Failure::new(FailureKind::Invalid, text)
            })?;
        }
        room.set_tiling(turn, Some(wish))?;
        let name = room.conference.name.clone();
        self.check_video(turn, &name);
        self.assign_tiles(turn, &name);
        turn.kept(&name);
        let none = || Failure::new(FailureKind::NotFound, format!("conference {name} has no tiling"));
        self.room(conference)?.view_tiling().ok_or_else(none)
    }

    /// Checks which video receivers without tiled streams can play, and logs the streams whose codec a receiver has not named.
    fn check_video(&mut self, turn: &mut Turn, name: &Name) {
        let pairs = self.planner.payload_types();
        let Some(room) = self.rooms.get_mut(name) else { return };
        let before = room.conference.differing.clone();
        room.conference.check_video(pairs);
        for ((sender, receiver), differ) in &room.conference.differing {
            if before.contains_key(&(sender.clone(), receiver.clone())) {
                continue;
            }
            turn.log(
                Level::Warn,
                format!("conference {name}: {receiver} gets no video of {sender}: {differ}"),
            );
            turn.tell(name, "unjoined", Some(receiver), Some(Medium::Video), |facts| {
                facts.insert("sender".into(), sender.to_string().into());
                facts.insert("detail".into(), differ.to_string().into());
            });
        }
    }

    /// Ends tiled streams: all receivers get each sender's video.
    ///
    /// # Errors
    /// There is no such conference, or it has no tiled streams.
    pub fn end_tiling(&mut self, turn: &mut Turn, conference: &str) -> Result<(), Failure> {
        let room = self.room_mut(conference)?;
        let name = room.conference.name.clone();
        if room.tiling.is_none() {
            return Err(Failure::new(FailureKind::NotFound, format!("conference {name} has no tiling")));
        }
        room.set_tiling(turn, None)?;
        self.check_video(turn, &name);
        turn.kept(&name);
        Ok(())
    }

    /// Updates the tiles after a change of the participants.
    pub(super) fn assign_tiles(&mut self, turn: &mut Turn, name: &Name) {
        let Some(room) = self.rooms.get_mut(name) else { return };
        if room.tiling.is_none() {
            return;
        }
        let (sources, mut fresh) = (room.sources(), fresh(&mut self.random, room.video_ssrcs()));
        let tiling = room.conference.tiling.as_mut();
        if tiling.is_some_and(|tiling| tiling.tiles.assign(&sources, &mut fresh, turn.now)) {
            room.conference.settle();
            room.tell_layout(turn);
            turn.kept(name);
        }
    }

    /// Records a mixer's report on tiles.
    pub fn tiled(&mut self, turn: &mut Turn, control: &str, tilings: Tilings) {
        for one in tilings.tilings {
            let Some((name, job)) = Job::of_tiling(&one.tiling) else { continue };
            let room = self.rooms.get_mut(name);
            let Some(room) = room.filter(|room| room.is_made_by(job, control, tilings.epoch)) else {
                continue;
            };
            let mut changed = false;
            for stream in one.streams {
                changed |= room.take_tiled(turn, &mut self.random, job, stream);
            }
            if changed {
                turn.kept(&room.conference.name);
            }
        }
    }
}

impl Room {
    /// Publishes the assignment of tiles, and the senders without one.
    pub(super) fn tell_layout(&self, turn: &mut Turn) {
        let Some(tiles) = self.tiles() else { return };
        let tile = |(place, tile): (&u8, &Tile)| serde_json::json!({"place": place, "participant": &*tile.participant});
        let stream = |stream: &Stream| {
            let tiles: Vec<_> = stream.tiles.iter().map(tile).collect();
            serde_json::json!({"ssrc": stream.ssrc, "tiles": tiles})
        };
        let streams: Vec<_> = tiles.streams().iter().map(stream).collect();
        let untiled = tiles.untiled().iter();
        let untiled: Vec<_> = untiled
            .map(|(name, reason)| serde_json::json!({"participant": &**name, "reason": reason}))
            .collect();
        turn.tell(&self.conference.name, "layout", None, Some(Medium::Video), |facts| {
            facts.insert("streams".into(), streams.into());
            facts.insert("untiled".into(), untiled.into());
        });
    }

    /// Records a report of a job's mixer on a stream. Returns whether a sender has lost its tile.
    fn take_tiled(&mut self, turn: &mut Turn, random: &mut Random, job: Job, stream: SaidStream) -> bool {
        let mut fresh = fresh(random, self.video_ssrcs());
        let Some(tiling) = &mut self.conference.tiling else { return false };
        let said = stream.tiles.iter().map(TileState::said).collect();
        let lost = tiling.tiles.take(job, stream.ssrc, said, &mut fresh, turn.now);
        for (participant, reason) in &lost {
            let name = &self.conference.name;
            turn.log(Level::Info, format!("conference {name}: {participant} loses its tile: {reason}"));
        }
        if !lost.is_empty() {
            // The column of those senders has restarted.
            self.conference.settle();
        }
        !lost.is_empty()
    }

    #[must_use]
    pub fn view_tiling(&self) -> Option<shunt_admin_model::Tiling> {
        let (tiling, tiles) = (self.tiling.as_ref()?, self.tiles()?);
        let mixer = |job: Job| self.placed.get(&job).map(|placed| placed.control.clone());
        let lacking = tiles.jobs().into_iter().filter(|job| !self.placed.contains_key(job));
        let problem = |job: Job| {
            let reason = tiling.problems.get(&job)?;
            Some(match job {
                Job::Column(number) => format!("column {number}: {reason}"),
                _ => reason.clone(),
            })
        };
        let streams = tiles.streams().iter().enumerate().map(|(at, stream)| {
            let columns = stream
                .columns
                .iter()
                .map(|(column, made)| (tiles.column_job(at, *column), *column, made.ssrc));
            TiledStream {
                ssrc: stream.ssrc,
                places: tiles.shape().stream().unwrap_or(u8::MAX),
                tiles: stream.tiles.iter().map(view_tile).collect(),
                columns: columns
                    .map(|(job, column, ssrc)| TiledColumn {
                        column,
                        ssrc,
                        mixer: mixer(job),
                    })
                    .collect(),
            }
        });
        let untiled = |(name, reason): (&Name, &String)| Untiled {
            participant: name.as_bytes().into(),
            reason: reason.clone(),
        };
        Some(shunt_admin_model::Tiling {
            wish: tiling.wish.clone(),
            mixer: mixer(Job::Tiles),
            problem: lacking.filter_map(problem).next(),
            streams: streams.collect(),
            untiled: tiles.untiled().iter().map(untiled).collect(),
        })
    }
}

fn view_tile((place, tile): (&u8, &Tile)) -> shunt_admin_model::Tile {
    let shown = tile.shown();
    shunt_admin_model::Tile {
        place: *place,
        participant: tile.participant.as_bytes().into(),
        source: tile.source,
        x: shown.area.map(|area| area.x),
        y: shown.area.map(|area| area.y),
        width: shown.area.map(|area| area.width),
        height: shown.area.map(|area| area.height),
        pictures: shown.pictures,
        refused: shown.refused,
        refusal: shown.refusal.clone(),
    }
}
