//! Tiled streams: who has which tile, what a mixer is told of them, and what it says of sources that it cannot tile.

use super::Conferences;
use super::mixer_client::{Description, Shown, Stream as DescribedStream, Tile as DescribedTile, Tiling as DescribedTiling, Tilings};
use super::mixers::{name_of, random_ssrc};
use super::state::{self, Room, State};
use super::store::{KeptStream, KeptTiling};
use shunt_admin::{Failure, FailureKind, TiledCodec, TiledStream, TilingWish, Untiled};
use shunt_conference::adaptation::Medium;
use shunt_conference::membership::STREAMS;
use shunt_conference::participant::{Leg, Participant};
use shunt_conference::payload_types::PayloadType;
use shunt_conference::tables::Name;
use shunt_conference::tiling::Tiling as Wanted;
use shunt_latch::Time;
use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Tiles of a CIF picture; and of a column and a grid unless more or fewer are wanted.
const QUARTERS: u8 = 4;
const COLUMN: u8 = 15;
const GRID: u8 = 16;
/// A tile is taken back when nothing of its source could be tiled for so long, and of so many pictures: a key frame may have to come first.
const REFUSED: Duration = Duration::from_secs(3);
const PICTURES: u64 = 3;
/// After so long its source is tried again: its encoder may have other settings by then.
const AGAIN: Duration = Duration::from_secs(60);

/// A tile that somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tile {
    participant: Name,
    /// The SSRC of its pictures.
    source: u32,
    shown: Shown,
    /// Since when, and since how many refused pictures, none was tiled.
    refused: Option<(Time, u64)>,
}

impl Tile {
    fn new(participant: Name, source: u32) -> Self {
        Self {
            participant,
            source,
            shown: Shown::default(),
            refused: None,
        }
    }

    /// Take in what its mixer says of it; `Some`: why it cannot be tiled.
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

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stream {
    ssrc: u32,
    tiles: BTreeMap<u8, Tile>,
}

/// Who sends which stream of video, or why no tile can be made of it.
type Source = (Name, Result<u32, String>);

/// The tiled streams of a conference.
#[derive(Clone, Debug)]
pub struct Tiling {
    wish: TilingWish,
    streams: Vec<Stream>,
    /// Sources that their mixer has refused: the stream, why, and when.
    refused: BTreeMap<Name, (u32, String, Time)>,
    /// Who sends video and has no tile, and why.
    untiled: BTreeMap<Name, String>,
    /// Why no mixer makes them.
    problem: Option<String>,
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

/// # Errors
/// It cannot be.
fn check(wish: &TilingWish) -> Result<Wanted, Failure> {
    let invalid = |text: String| Failure::new(FailureKind::Invalid, text);
    let payload_type = payload_type(wish);
    if payload_type.number > 127 {
        return Err(invalid(format!("payload_type {} is not in 0..127", payload_type.number)));
    }
    match (wish.codec, wish.places) {
        (TiledCodec::H261, Some(places)) if places != QUARTERS => {
            return Err(invalid(format!("places {places}: a CIF picture of H.261 has {QUARTERS}")));
        }
        (_, Some(0)) => return Err(invalid("places 0: a column or grid has one at least".to_owned())),
        _ => {}
    }
    let names = wish.receivers.as_ref().map(|names| {
        let names = names.iter().map(|name| state::check_name("receiver", &name.as_text()));
        names.collect::<Result<_, _>>()
    });
    Ok(Wanted {
        payload_type,
        receivers: names.transpose()?,
    })
}

impl Tiling {
    fn new(wish: TilingWish) -> Self {
        Self {
            wish,
            streams: Vec::new(),
            refused: BTreeMap::new(),
            untiled: BTreeMap::new(),
            problem: None,
        }
    }

    fn places(&self) -> u8 {
        self.wish.places.unwrap_or(match self.wish.codec {
            TiledCodec::H261 => QUARTERS,
            TiledCodec::H264 => COLUMN,
            TiledCodec::H265 => GRID,
        })
    }

    /// Whether streams of these wishes are the same, for whomever they are.
    fn makes_the_same(&self, wish: &TilingWish) -> bool {
        let receivers = self.wish.receivers.clone();
        TilingWish { receivers, ..wish.clone() } == self.wish
    }

    fn ssrcs(&self) -> Vec<u32> {
        self.streams.iter().map(|stream| stream.ssrc).collect()
    }

    fn has_tiles(&self) -> bool {
        self.streams.iter().any(|stream| !stream.tiles.is_empty())
    }

    /// Give sources tiles, and take those of others back: who has one keeps its place. `used`: SSRCs that are somebody's. Whether anything has changed.
    fn assign(&mut self, sources: &[Source], used: &HashSet<u32>, now: Time) -> bool {
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
            if !self.give(name, source, used) {
                let most = usize::from(self.places()) * STREAMS;
                self.untiled.insert(name.clone(), format!("all {most} tiles are taken"));
            }
        }
        while self.streams.len() > 1 && self.streams.last().is_some_and(|stream| stream.tiles.is_empty()) {
            self.streams.pop();
        }
        before != (self.streams.clone(), self.untiled.clone())
    }

    /// The first place that is free; whether there is one.
    fn give(&mut self, name: &Name, source: u32, used: &HashSet<u32>) -> bool {
        let places = self.places();
        let free = |stream: &Stream| (0..places).find(|place| !stream.tiles.contains_key(place));
        if self.streams.iter().all(|stream| free(stream).is_none()) && self.streams.len() < STREAMS {
            let ssrc = self.new_ssrc(used);
            let tiles = BTreeMap::new();
            self.streams.push(Stream { ssrc, tiles });
        }
        let found = self.streams.iter_mut().find_map(|stream| Some((free(stream)?, stream)));
        found.is_some_and(|(place, stream)| stream.tiles.insert(place, Tile::new(name.clone(), source)).is_none())
    }

    fn new_ssrc(&self, used: &HashSet<u32>) -> u32 {
        loop {
            let ssrc = random_ssrc();
            if !used.contains(&ssrc) && !self.ssrcs().contains(&ssrc) {
                return ssrc;
            }
        }
    }

    /// Take in what its mixer says of a tile; who has lost its tile for that, and why.
    fn take(&mut self, ssrc: u32, place: u8, source: u32, shown: Shown, now: Time) -> Option<(Name, String)> {
        let stream = self.streams.iter_mut().find(|stream| stream.ssrc == ssrc)?;
        let tile = stream.tiles.get_mut(&place).filter(|tile| tile.source == source)?;
        let reason = tile.take(shown, now)?;
        let name = tile.participant.clone();
        self.refused.insert(name.clone(), (source, reason.clone(), now));
        Some((name, reason))
    }

    fn describe(&self, from: SocketAddr) -> DescribedTiling {
        let tile = |(place, tile): (&u8, &Tile)| DescribedTile {
            place: *place,
            participant: tile.participant.to_string(),
            source: tile.source,
            predicted: self.wish.predicted,
        };
        let stream = |stream: &Stream| DescribedStream {
            ssrc: stream.ssrc,
            places: self.places(),
            tiles: stream.tiles.iter().map(tile).collect(),
        };
        DescribedTiling {
            from,
            to: from,
            codec: self.wish.codec,
            payload_type: payload_type(&self.wish).number,
            streams: self.streams.iter().map(stream).collect(),
        }
    }

    #[must_use]
    pub fn keep(&self) -> KeptTiling {
        let stream = |stream: &Stream| KeptStream {
            ssrc: stream.ssrc,
            tiles: stream
                .tiles
                .iter()
                .map(|(place, tile)| (*place, tile.participant.to_string(), tile.source))
                .collect(),
        };
        KeptTiling {
            wish: self.wish.clone(),
            streams: self.streams.iter().map(stream).collect(),
        }
    }

    #[must_use]
    pub fn view(&self, mixer: Option<&str>) -> shunt_admin::Tiling {
        let tile = |(place, tile): (&u8, &Tile)| shunt_admin::Tile {
            place: *place,
            participant: tile.participant.as_bytes().into(),
            source: tile.source,
            x: tile.shown.x,
            y: tile.shown.y,
            width: tile.shown.width,
            height: tile.shown.height,
            pictures: tile.shown.pictures,
            refused: tile.shown.refused,
            refusal: tile.shown.refusal.clone(),
        };
        let stream = |stream: &Stream| TiledStream {
            ssrc: stream.ssrc,
            tiles: stream.tiles.iter().map(tile).collect(),
        };
        let untiled = |(name, reason): (&Name, &String)| Untiled {
            participant: name.as_bytes().into(),
            reason: reason.clone(),
        };
        shunt_admin::Tiling {
            wish: self.wish.clone(),
            mixer: mixer.map(str::to_owned),
            problem: self.problem.clone().filter(|_| mixer.is_none()),
            streams: self.streams.iter().map(stream).collect(),
            untiled: self.untiled.iter().map(untiled).collect(),
        }
    }
}

impl Room {
    /// From now on these tiled streams are wanted, or none. Those that are the same but for their receivers go on.
    ///
    /// # Errors
    /// They cannot be.
    pub fn set_tiling(&mut self, wish: Option<TilingWish>) -> Result<(), Failure> {
        let wanted = wish.as_ref().map(check).transpose()?;
        if self.tiling.is_some()
            && !wish
                .as_ref()
                .is_some_and(|wish| self.tiling.as_ref().is_some_and(|before| before.makes_the_same(wish)))
        {
            self.say_over(Medium::Video);
        }
        self.conference.tiling = wanted;
        self.conference.settle();
        self.tiling = match (self.tiling.take(), wish) {
            (Some(tiling), Some(wish)) if tiling.makes_the_same(&wish) => Some(Tiling { wish, ..tiling }),
            (_, wish) => wish.map(Tiling::new),
        };
        Ok(())
    }

    /// As they were kept.
    ///
    /// # Errors
    /// They cannot be.
    pub fn restore_tiling(&mut self, kept: KeptTiling) -> Result<(), Failure> {
        self.set_tiling(Some(kept.wish))?;
        let Some(tiling) = &mut self.tiling else { return Ok(()) };
        let streams = kept.streams.into_iter().map(|stream| Stream {
            ssrc: stream.ssrc,
            tiles: stream
                .tiles
                .into_iter()
                .map(|(place, participant, source)| (place, Tile::new(participant.into(), source)))
                .collect(),
        });
        tiling.streams = streams.collect();
        Ok(())
    }

    /// Whether a mixer has something to make of a medium.
    #[must_use]
    pub fn needs(&self, medium: Medium) -> bool {
        match medium {
            Medium::Audio => self.conference.participants.iter().any(|one| one.mixed),
            _ => self.tiling.as_ref().is_some_and(Tiling::has_tiles),
        }
    }

    /// Why no mixer makes it.
    pub fn lacks_mixer(&mut self, medium: Medium, reason: String) {
        if let (Medium::Video, Some(tiling)) = (medium, &mut self.tiling) {
            tiling.problem = Some(reason);
        }
    }

    /// What a mixer is told of the tiled streams, copies for which come from this port. `None`: none are wanted.
    pub fn describe_tiles(&mut self, address: IpAddr, port: u16) -> Option<Description> {
        let tiling = self.tiling.as_ref()?;
        Some(Description::Tiles(tiling.describe(SocketAddr::new(address, port))))
    }

    /// Another mixer, or another run of it, makes the streams from now on: they are new ones, with the same tiles.
    pub fn renew_tiles(&mut self) {
        let used = self.video_ssrcs();
        let Some(tiling) = &mut self.tiling else { return };
        for at in 0..tiling.streams.len() {
            let ssrc = tiling.new_ssrc(&used);
            if let Some(stream) = tiling.streams.get_mut(at) {
                stream.ssrc = ssrc;
                stream
                    .tiles
                    .values_mut()
                    .for_each(|tile| *tile = Tile::new(tile.participant.clone(), tile.source));
            }
        }
    }

    /// What the leg of the mixer of video sends.
    pub fn tile(&self, leg: &mut Leg) {
        let Some(tiling) = &self.tiling else { return };
        leg.ssrcs = tiling.ssrcs();
        leg.payload_types = vec![payload_type(&tiling.wish)];
    }

    fn video_ssrcs(&self) -> HashSet<u32> {
        let legs = self.conference.participants.iter().flat_map(|one| &one.legs);
        let video = legs.filter(|((medium, _), _)| *medium == Medium::Video);
        video.flat_map(|(_, leg)| leg.ssrcs.iter().copied()).collect()
    }

    /// Who sends video, in the order in which they joined.
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

    /// The stream, or why no tile can be made of it whatever its pictures are.
    fn source(&self, one: &Participant, leg: &Leg, ssrc: u32) -> Result<u32, String> {
        if let Some(owner) = self.conference.conflict(&one.name, Medium::Video, ssrc) {
            return Err(format!("its SSRC is {owner}'s"));
        }
        if one.encrypted {
            return Err("its media are encrypted".to_owned());
        }
        let wanted = self.tiling.as_ref().map_or("", |tiling| codec(&tiling.wish));
        let is_wanted = |one: &PayloadType| one.codec.eq_ignore_ascii_case(wanted);
        let sent = self.leg(&one.name, (Medium::Video, 0)).and_then(|(_, state)| state.payload_type);
        let sent = leg.payload_types.iter().find(|one| Some(one.number) == sent);
        match sent {
            Some(sent) if !is_wanted(sent) => Err(format!("it sends {}, and not {wanted}", sent.codec)),
            None if !leg.payload_types.is_empty() && !leg.payload_types.iter().any(is_wanted) => Err(format!("it has not named {wanted}")),
            _ => Ok(ssrc),
        }
    }
}

impl Conferences {
    /// Conferences whose video a mixer tiles, and participants whose video comes tiled.
    #[must_use]
    pub fn tiled_sizes(&self) -> (usize, usize) {
        self.with(|state| {
            let mut sizes = (0, 0);
            for room in state.rooms.values().filter(|room| room.placed.contains_key(&Medium::Video)) {
                sizes.0 += 1;
                sizes.1 += room.conference.participants.iter().filter(|one| one.tiled).count();
            }
            sizes
        })
    }

    /// From now on these tiled streams of a conference are wanted.
    ///
    /// # Errors
    /// There is no such conference, they cannot be, or there is no mixer.
    pub fn set_tiling(&self, conference: &str, wish: TilingWish) -> Result<shunt_admin::Tiling, Failure> {
        self.with(|state| {
            let room = state.room_mut(conference)?;
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
            room.set_tiling(Some(wish))?;
            let name = room.conference.name.clone();
            self.check_video(state, &name);
            self.assign_tiles(state, &name);
            self.kept(state, &name);
            let room = state.room(conference)?;
            let none = || Failure::new(FailureKind::NotFound, format!("conference {name} has no tiling"));
            room.view_tiling().ok_or_else(none)
        })
    }

    /// Who gets no tiled streams any more gets everybody's video, except that of a codec which it has not named; of whom is told.
    fn check_video(&self, state: &mut State, name: &Name) {
        let pairs = state.planner.payload_types();
        let Some(room) = state.rooms.get_mut(name) else { return };
        let before = room.conference.differing.clone();
        room.conference.check_video(pairs);
        for ((sender, receiver), differ) in &room.conference.differing {
            if before.contains_key(&(sender.clone(), receiver.clone())) {
                continue;
            }
            tracing::warn!("conference {name}: {receiver} gets no video of {sender}: {differ}");
            self.shared.tell(name, "unjoined", Some(receiver), Some(Medium::Video), |facts| {
                facts.insert("sender".into(), sender.to_string().into());
                facts.insert("detail".into(), differ.to_string().into());
            });
        }
    }

    /// Tiled streams are no longer wanted: everybody gets everybody's video.
    ///
    /// # Errors
    /// There is no such conference, or it has none.
    pub fn end_tiling(&self, conference: &str) -> Result<(), Failure> {
        self.with(|state| {
            let room = state.room_mut(conference)?;
            let name = room.conference.name.clone();
            if room.tiling.is_none() {
                return Err(Failure::new(FailureKind::NotFound, format!("conference {name} has no tiling")));
            }
            room.set_tiling(None)?;
            self.check_video(state, &name);
            self.kept(state, &name);
            Ok(())
        })
    }

    /// Tiles follow who is there.
    pub fn assign_tiles(&self, state: &mut State, name: &Name) {
        let now = self.shared.clock.now();
        let Some(room) = state.rooms.get_mut(name) else { return };
        if room.tiling.is_none() {
            return;
        }
        let (sources, used) = (room.sources(), room.video_ssrcs());
        let changed = room.tiling.as_mut().is_some_and(|tiling| tiling.assign(&sources, &used, now));
        let Some(mut leg) = room
            .conference
            .get(&name_of(Medium::Video))
            .and_then(|one| one.leg(Medium::Video))
            .cloned()
        else {
            if changed {
                self.tell_layout(room);
                self.shared.store.put(&room.keep());
            }
            return;
        };
        let before = leg.clone();
        room.tile(&mut leg);
        if leg == before && !changed {
            return;
        }
        if let Ok(one) = room.conference.get_mut(&name_of(Medium::Video)) {
            one.legs.insert((Medium::Video, 0), leg);
        }
        room.conference.settle();
        self.tell_layout(room);
        self.kept(state, name);
    }

    /// Which tile is whose, and who has none.
    fn tell_layout(&self, room: &Room) {
        let Some(tiling) = &room.tiling else { return };
        let tile = |(place, tile): (&u8, &Tile)| serde_json::json!({"place": place, "participant": &*tile.participant});
        let stream = |stream: &Stream| {
            let tiles: Vec<_> = stream.tiles.iter().map(tile).collect();
            serde_json::json!({"ssrc": stream.ssrc, "tiles": tiles})
        };
        let streams: Vec<_> = tiling.streams.iter().map(stream).collect();
        let untiled = tiling.untiled.iter();
        let untiled: Vec<_> = untiled
            .map(|(name, reason)| serde_json::json!({"participant": &**name, "reason": reason}))
            .collect();
        self.shared
            .tell(&room.conference.name, "layout", None, Some(Medium::Video), |facts| {
                facts.insert("streams".into(), streams.into());
                facts.insert("untiled".into(), untiled.into());
            });
    }

    /// What a mixer says of tiles.
    pub fn tiled(&self, control: &str, tilings: Tilings) {
        let now = self.shared.clock.now();
        self.with(|state| {
            for one in tilings.tilings {
                let Some(room) = state.rooms.get_mut(one.tiling.as_str()) else {
                    continue;
                };
                if !room.is_made_by(Medium::Video, control, tilings.epoch) {
                    continue;
                }
                let Some(tiling) = &mut room.tiling else { continue };
                tiling.problem = None;
                for stream in one.streams {
                    for tile in stream.tiles {
                        if let Some((participant, reason)) = tiling.take(stream.ssrc, tile.place, tile.contributor, tile.shown, now) {
                            tracing::info!("conference {}: {participant} loses its tile: {reason}", room.conference.name);
                        }
                    }
                }
            }
        });
    }
}

impl Room {
    #[must_use]
    pub fn view_tiling(&self) -> Option<shunt_admin::Tiling> {
        let mixer = self.placed.get(&Medium::Video).map(|placed| placed.control.as_str());
        Some(self.tiling.as_ref()?.view(mixer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiling(places: u8) -> Tiling {
        Tiling::new(TilingWish {
            codec: TiledCodec::H264,
            payload_type: None,
            places: Some(places),
            predicted: false,
            receivers: None,
        })
    }

    fn sources(list: &[(&str, u32)]) -> Vec<Source> {
        list.iter().map(|(name, ssrc)| ((*name).into(), Ok(*ssrc))).collect()
    }

    fn assign(made: &mut Tiling, list: &[(&str, u32)], now: Time) -> bool {
        made.assign(&sources(list), &HashSet::new(), now)
    }

    fn at(seconds: u64) -> Time {
        Time::from(Duration::from_secs(seconds))
    }

    /// Participant, stream and place of each tile.
    fn layout(made: &Tiling) -> Vec<(String, usize, u8)> {
        let streams = made.streams.iter().enumerate();
        streams
            .flat_map(|(stream, of)| {
                of.tiles
                    .iter()
                    .map(move |(place, tile)| (tile.participant.to_string(), stream, *place))
            })
            .collect()
    }

    /// So many pictures, of which so many could not be tiled.
    fn refused(pictures: u64, refused: u64, last: bool) -> Shown {
        Shown {
            pictures,
            refused,
            refusal: last.then(|| "no".to_owned()),
            ..Shown::default()
        }
    }

    #[test]
    fn who_has_a_tile_keeps_its_place_and_who_comes_gets_the_first_that_is_free() {
        let mut made = tiling(2);
        let all = [("a", 1), ("b", 2), ("c", 3)];
        assert!(assign(&mut made, &all, at(0)) && !assign(&mut made, &all, at(1)));
        let is = |made: &Tiling, wanted: &[(&str, usize, u8)]| {
            let wanted: Vec<_> = wanted
                .iter()
                .map(|(name, stream, place)| ((*name).to_owned(), *stream, *place))
                .collect();
            assert_eq!(layout(made), wanted);
        };
        is(&made, &[("a", 0, 0), ("b", 0, 1), ("c", 1, 0)]);
        let ssrcs = made.ssrcs();
        assert_ne!(ssrcs[0], ssrcs[1]);
        assert!(assign(&mut made, &[("b", 2), ("c", 3)], at(2)));
        is(&made, &[("b", 0, 1), ("c", 1, 0)]);
        // An encoder that has begun anew has another SSRC.
        assert!(assign(&mut made, &[("b", 7), ("c", 3), ("d", 4)], at(3)));
        is(&made, &[("d", 0, 0), ("b", 0, 1), ("c", 1, 0)]);
        assert_eq!(made.ssrcs(), ssrcs);
        assert!(assign(&mut made, &[("b", 7)], at(4)));
        assert_eq!(made.ssrcs(), ssrcs[..1], "a stream without tiles is over");
        assert!(assign(&mut made, &[], at(5)));
        assert_eq!(made.ssrcs(), ssrcs[..1], "the first one stays");
    }

    #[test]
    fn who_comes_when_all_tiles_are_taken_is_named() {
        let mut made = tiling(1);
        assign(&mut made, &[("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)], at(0));
        assert_eq!(layout(&made).len(), STREAMS);
        assert_eq!(made.untiled.get("e").map(String::as_str), Some("all 4 tiles are taken"));
        assert!(assign(&mut made, &[("b", 2), ("c", 3), ("d", 4), ("e", 5)], at(1)));
        assert_eq!(layout(&made)[0], ("e".to_owned(), 0, 0));
        assert!(made.untiled.is_empty());
    }

    #[test]
    fn a_tile_whose_source_is_refused_for_long_is_taken_back_and_tried_again_later() {
        let (mut made, list) = (tiling(4), [("a", 1), ("b", 2)]);
        assign(&mut made, &list, at(0));
        let stream = made.ssrcs()[0];
        let says = |made: &mut Tiling, shown, seconds| made.take(stream, 0, 1, shown, at(seconds));
        assert_eq!(says(&mut made, refused(1, 1, true), 1), None);
        assert_eq!(says(&mut made, refused(2, 2, true), 9), None, "too few pictures");
        assert_eq!(says(&mut made, refused(3, 2, false), 10), None, "one that can be tiled");
        assert_eq!(says(&mut made, refused(12, 11, true), 11), None);
        assert_eq!(says(&mut made, refused(20, 19, true), 13), None, "too soon");
        assert_eq!(says(&mut made, refused(30, 29, true), 14), Some(("a".into(), "no".to_owned())));
        assert_eq!(made.take(stream, 0, 9, refused(90, 90, true), at(99)), None, "another one's tile");
        assert!(assign(&mut made, &list, at(15)));
        assert_eq!(layout(&made), [("b".to_owned(), 0, 1)]);
        assert_eq!(made.untiled.get("a").map(String::as_str), Some("no"));
        assert!(!assign(&mut made, &list, at(73)));
        assert!(assign(&mut made, &list, at(74)), "its encoder may have other settings");
        made.take(stream, 0, 1, refused(1, 1, true), at(80));
        made.take(stream, 0, 1, refused(9, 9, true), at(90));
        assert!(assign(&mut made, &list, at(91)));
        assert!(assign(&mut made, &[("a", 8), ("b", 2)], at(92)), "another stream is tried at once");
        assert_eq!(layout(&made)[0], ("a".to_owned(), 0, 0));
    }
}
