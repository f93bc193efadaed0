//! Tiles what comes on standard input, in the time that its records tell, and writes the packets that come out: for tests and benches.
//!
//!     tile h261|h264|h265 [SIZE [HOLD [PLACES [COLUMNS]]]]
//!     tile cut-h261 [SIZE]
//!
//! The second cuts coded pictures (0 in) into payloads as the first does (0 out), so that a source's own stream is made by the same rules.
//!
//! SIZE: octets of a packet at most (1372), HOLD: milliseconds that a picture waits for others (125), PLACES of a column or a grid (4), COLUMNS of a grid. A record is a time in nanoseconds (8
//! octets), a kind, a place, the length of its data (4) and the data. In: 0 a packet; 1 join, with the source, the contributor (4 each) and the
//! region (H.261: the quarter of a CIF picture, or 255, all of the picture; others: 1 if pictures are predicted, the tile, tiles of the source's
//! picture); 2 leave; 3 a receiver asks for a key frame; 4 a pause in which time passes. Out: 0 a
//! packet; 1 a source to ask for a key frame; its place is the stream's number. H.261 has a stream for each four places. Ends with a line of
//! figures on standard error, the processor time among them.

use nix::time::{ClockId, clock_gettime};
use shunt_latch::Time;
use shunt_tiling::h261;
use shunt_tiling::h261::mosaic::{Composed, Cut};
use shunt_tiling::h261::packets::payloads;
use shunt_tiling::h261::payload::Header;
use shunt_tiling::h261::picture::Picture;
use shunt_tiling::h264::column::Column;
use shunt_tiling::h265::grid::{self, Grid};
use shunt_tiling::sliced::Region;
use shunt_tiling::stream::Stream;
use shunt_tiling::tiler::{Mosaic, Place, Tiler};
use std::error::Error;
use std::io::{Read, Write};
use std::time::Duration;

struct Record<'a> {
    at: Time,
    kind: u8,
    place: usize,
    data: &'a [u8],
}

fn number(data: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(data.get(..4)?.try_into().ok()?))
}

fn records(mut input: &[u8]) -> Option<Vec<Record<'_>>> {
    let mut records = Vec::new();
    while !input.is_empty() {
        let (head, rest) = input.split_at_checked(14)?;
        let (data, rest) = rest.split_at_checked(number(&head[10..])? as usize)?;
        records.push(Record {
            at: Time::from_nanos(u64::from_be_bytes(head[..8].try_into().ok()?)),
            kind: head[8],
            place: usize::from(head[9]),
            data,
        });
        input = rest;
    }
    Some(records)
}

/// Streams of one codec, and what they send.
struct Streams<M: Mosaic> {
    tilers: Vec<Tiler<M>>,
    places: usize,
    region: fn(&[u8]) -> Option<M::Region>,
    out: Vec<(Time, u8, usize, Vec<u8>)>,
    refusals: Vec<String>,
}

impl<M: Mosaic> Streams<M> {
    fn poll(&mut self, now: Time) {
        for (stream, tiler) in self.tilers.iter_mut().enumerate() {
            let packets = tiler.poll(now);
            self.out.extend(packets.into_iter().map(|packet| (now, 0, stream, packet)));
            let asked = tiler.requests(now).into_iter();
            self.out.extend(asked.map(|ssrc| (now, 1, stream, ssrc.to_be_bytes().to_vec())));
        }
    }

    fn run(&mut self, records: &[Record<'_>]) -> Option<()> {
        let mut now = Time::default();
        for record in records {
            while let Some(due) = self.tilers.iter().filter_map(|tiler| tiler.due_at(now)).min() {
                if due > record.at {
                    break;
                }
                now = now.max(due);
                self.poll(now);
            }
            now = now.max(record.at);
            let tiler = self.tilers.get_mut(record.place / self.places)?;
            let place = record.place % self.places;
            match record.kind {
                0 => tiler.packet(record.data, now),
                1 => {
                    let joined = Place {
                        source: number(record.data)?,
                        contributor: number(record.data.get(4..)?)?,
                        region: (self.region)(record.data.get(8..)?)?,
                    };
                    if let Err(refusal) = tiler.join(place, joined) {
                        self.refusals.push(refusal.to_string());
                    }
                }
                2 => tiler.leave(place),
                3 => tiler.key_frame_wanted(),
                _ => {}
            }
            if let Some(refusal) = tiler.status(place).and_then(|status| status.refusal) {
                self.refusals.push(refusal.to_string());
            }
            self.poll(now);
        }
        Some(())
    }
}

fn write_record(output: &mut impl Write, at: Time, kind: u8, place: usize, data: &[u8]) -> Result<(), Box<dyn Error>> {
    output.write_all(&at.as_nanos().to_be_bytes())?;
    output.write_all(&[kind, u8::try_from(place)?])?;
    output.write_all(&u32::try_from(data.len())?.to_be_bytes())?;
    output.write_all(data)?;
    Ok(())
}

/// Payloads of pictures of H.261, each cut before macroblocks (RFC 4587).
fn cut(size: usize, input: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    for record in records(input).ok_or("a record is cut short")? {
        let mut read = Picture::default();
        read.read(record.data, 0..record.data.len() * 8)?;
        let mut cuts = Vec::new();
        for group in &read.groups {
            // The start code and the number before it are 20 bits. The first packet has the picture's header too.
            cuts.push((if cuts.is_empty() { 0 } else { group.bits.start - 20 }, Header::default()));
            cuts.extend(read.macroblocks[group.macroblocks.clone()].iter().skip(1).map(|macroblock| {
                let header = Header {
                    group: group.number,
                    address: macroblock.previous - 1,
                    quantiser: macroblock.quantiser,
                    vector: macroblock.reference,
                    ..Header::default()
                };
                (macroblock.at, header)
            }));
        }
        let cut = |(at, header)| Cut {
            at,
            header,
            contributor: None,
        };
        let composed = Composed {
            bits: record.data.to_vec(),
            end: record.data.len() * 8,
            cuts: cuts.into_iter().map(cut).collect(),
        };
        for payload in payloads(&composed, size) {
            write_record(&mut out, record.at, 0, record.place, &payload.octets)?;
        }
    }
    eprintln!("{{}}");
    Ok(())
}

fn tile<M: Mosaic>(
    make: impl Fn() -> M,
    region: fn(&[u8]) -> Option<M::Region>,
    size: usize,
    hold: Duration,
    input: &[u8],
) -> Result<(), Box<dyn Error>> {
    let records = records(input).ok_or("a record is cut short")?;
    let places = make().places();
    let count = records.iter().map(|record| record.place / places).max().unwrap_or(0) + 1;
    let stream = |ssrc| Stream {
        ssrc,
        payload_type: 31,
        sequence: 65_000,
        timestamp: 0xFFFF_0000,
        size,
    };
    let mut streams = Streams {
        tilers: (0..count).map(|at| Tiler::new(make(), stream(at as u32 + 1), hold)).collect(),
        places,
        region,
        out: Vec::new(),
        refusals: Vec::new(),
    };
    let began = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    streams.run(&records).ok_or("a record is cut short, or of no place")?;
    let spent = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)? - began);
    let mut output = std::io::stdout().lock();
    for (at, kind, stream, data) in &streams.out {
        write_record(&mut output, *at, *kind, *stream, data)?;
    }
    streams.refusals.dedup();
    eprintln!("{{\"seconds\": {:.6}, \"refusals\": {:?}}}", spent.as_secs_f64(), streams.refusals);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |at: usize, otherwise: usize| arguments.get(at).map_or(Ok(otherwise), |value| value.parse());
    let (size, hold) = (value(1, 1372)?, Duration::from_millis(value(2, 125)? as u64));
    let mut input = Vec::new();
    std::io::stdin().lock().read_to_end(&mut input)?;
    let places = value(3, 4)?;
    let columns = u8::try_from(value(4, grid::columns(u8::try_from(places)?).into())?)?.max(1);
    let slices = |region: &[u8]| match region {
        [predicted, tile, tiles] => Some(Region {
            tile: u32::from(*tile),
            tiles: u32::from(*tiles),
            predicted: *predicted == 1,
        }),
        _ => None,
    };
    let quarter = |region: &[u8]| match region {
        [255] => Some(h261::mosaic::Region::Whole),
        [quarter] => Some(h261::mosaic::Region::Quarter(*quarter)),
        _ => None,
    };
    match arguments.first().map(String::as_str) {
        Some("h264") => tile(|| Column::new(places), slices, size, hold, &input),
        Some("h265") => {
            let rows = u8::try_from(places.div_ceil(columns.into()))?;
            tile(|| Grid::new(columns, rows), slices, size, hold, &input)
        }
        Some("cut-h261") => cut(size, &input),
        Some("h261") => tile(h261::mosaic::Mosaic::default, quarter, size, hold, &input),
        _ => Err("h261, h264 or h265 is wanted".into()),
    }
}
