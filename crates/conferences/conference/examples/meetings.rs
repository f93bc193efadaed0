//! The rows of so many conferences of a design, as the agent's allocator lays them out: `meetings DESIGN COUNT PEOPLE` prints each write on a line of
//! its own, and last how long the allocator took.
//!
//! | line | |
//! | --- | --- |
//! | `node ID RID PORT` | |
//! | `tree+ MGID NODE:XID...`, `tree= ...` | a new tree; one that another conference lives in too |
//! | `prune L2_XID PORT...` | |
//! | `copy STREAM RID CONFERENCE SENDER RECEIVER` | |
//! | `stream CONFERENCE SENDER MGID TREES L1_XID RID L2_XID STREAM` | |
//! | `allocator SECONDS` | |

use shunt_conference::migration::{Allocator, How};
use shunt_conference::tables::{Limits, Name, Row, Value, Write};
use shunt_conference::trees::{Design, Layout, Participant};
use std::io::{BufWriter, Write as _};
use std::time::{Duration, Instant};

const QUALITIES: u32 = 3;

/// Conference `number`: everybody is behind port 0 and sends one stream with layers.
fn meeting(number: usize, people: usize) -> Layout {
    let participant = |one: usize| Participant {
        name: Name::from(format!("p{one}")),
        port: Some(0),
        streams: vec![(Name::from("video"), true)],
    };
    Layout {
        participants: (0..people).map(participant).collect(),
        ..Layout::empty(Name::from(format!("m{number}")))
    }
}

fn line(write: Write) -> Option<String> {
    let (sign, row, value) = match write {
        Write::Add(row, value) => ("+", row, value),
        Write::Modify(row, value) => ("=", row, value),
        Write::Delete(_) | Write::Drain => return None,
    };
    Some(match (row, value) {
        (Row::Node(id), Value::Node(node)) => format!("node {id} {} {}", node.rid, node.port.unwrap_or_default()),
        (Row::Tree(mgid), Value::Tree(members)) => {
            let members: Vec<String> = members.iter().map(|one| format!("{}:{}", one.node, one.xid)).collect();
            format!("tree{sign} {mgid} {}", members.join(" "))
        }
        (Row::Prune(xid), Value::Prune(ports)) => {
            let ports: Vec<String> = ports.iter().map(u32::to_string).collect();
            format!("prune {xid} {}", ports.join(" "))
        }
        (Row::Copy(stream, rid), Value::Copy(copy)) => {
            let source = copy.source;
            format!("copy {stream} {rid} {} {} {}", source.conference, source.sender, copy.receiver)
        }
        (Row::Stream(source), Value::Stream(to)) => format!(
            "stream {} {} {} {} {} {} {} {}",
            source.conference, source.sender, to.mgid, to.trees, to.l1_xid, to.rid, to.l2_xid, to.stream
        ),
        _ => return None,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [design, count, people] = words.as_slice() else {
        return Err("usage: meetings DESIGN COUNT PEOPLE".into());
    };
    let designs = [Design::Nra, Design::RaR, Design::RaSr];
    let found = designs.into_iter().find(|one| one.name() == design);
    let design = found.ok_or_else(|| format!("{design:?} is none of NRA, RA-R and RA-SR"))?;
    let (count, people): (usize, usize) = (count.parse()?, people.parse()?);
    let mut allocator = Allocator::new(Limits::default(), QUALITIES);
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut spent = Duration::ZERO;
    for number in 0..count {
        let layout = meeting(number, people);
        let begun = Instant::now();
        let how = How {
            design: Some(design),
            rebuild: false,
        };
        let mut change = allocator.change(layout, how)?;
        let writes: Vec<Write> = std::iter::from_fn(|| allocator.next(&mut change)).collect();
        spent += begun.elapsed();
        for text in writes.into_iter().filter_map(line) {
            writeln!(out, "{text}")?;
        }
    }
    writeln!(out, "allocator {}", spent.as_secs_f64())?;
    Ok(())
}
