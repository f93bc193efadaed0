//! Background tasks beside clients' calls: learn notices, next hops, idle times, liveness.

use crate::plane::ports::Program;
use crate::plane::{LearnNotice, Plane};
use crate::ring::{Wakeups, watch};
use crate::server::Service;
use crate::slice::{Slice, pause};
use shunt_bfrt::pb::{self, idle_timeout_notification::NotificationType, table_entry};
use shunt_bfrt::schema::Learn;
use shunt_bfrt::values::stream;
use shunt_net::{FiveTuple, octets};
use shunt_nexthop::Moved;
use shunt_relay_table::Cursor;
use shunt_replication::Round;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::{Bound, ControlFlow};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Notices that are read from the kernel at a time and put into one digest.
const NOTICES: usize = 1024;
const DIGEST: usize = 256;
/// Coalescing window for notices in quick succession: a message costs more than its notices.
const COALESCING: Duration = Duration::from_millis(3);
const HOUSEKEEPING: Duration = Duration::from_secs(5);
const OWNER_SIGN: Duration = Duration::from_millis(250);
const RESTART: Duration = Duration::from_secs(1);
const LEAST_IDLE_POLL: Duration = Duration::from_millis(100);
const ALL_PIPES: u32 = 0xffff;
/// Conference packets per read, and copies per check of next hops.
const FRAMES: usize = 256;
const COPIES: usize = 256;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(20);

/// Runs a task without end. The end of a task is a fault: it is logged, counted in the log, and the task is restarted.
pub fn keep<F, T>(name: &'static str, mut start: F)
where
    F: FnMut() -> T + Send + 'static,
    T: Future<Output = std::io::Result<()>> + Send + 'static,
{
    tokio::spawn(async move {
        for ended in 1u64.. {
            match tokio::spawn(start()).await {
                Ok(Ok(())) => tracing::error!("the task {name} ended (time {ended}), and is started again"),
                Ok(Err(error)) => tracing::error!("the task {name} ended (time {ended}): {error}; it is started again"),
                Err(error) => tracing::error!("the task {name} failed (time {ended}): {error}; it is started again"),
            }
            sleep(RESTART).await;
        }
    });
}

/// Starts all tasks.
pub fn start(service: &Service) {
    let each = |service: &Service| service.clone();
    let (one, two, three, four, five) = (each(service), each(service), each(service), each(service), each(service));
    let (six, seven) = (each(service), each(service));
    keep("conference packets", move || agent_packets(six.clone()));
    keep("conference rounds", move || rounds(seven.clone()));
    keep("learn notices", move || learn(one.clone()));
    keep("next hops", move || next_hops(two.clone()));
    keep("path MTUs", move || path_mtus(three.clone()));
    keep("owner's sign of life", move || owner_sign(four.clone()));
    keep("idle notices", move || idle(five.clone()));
    let eight = each(service);
    keep("host policy", move || host_policy(eight.clone()));
}

async fn learn(service: Service) -> std::io::Result<()> {
    let mut wakeups = Wakeups::new(service.plane.lock().await.notices_fd()?)?;
    let mut sent = Instant::now();
    loop {
        wakeups.wait().await?;
        // Notices after a pause are sent at once.
        if sent.elapsed() < COALESCING {
            sleep(COALESCING).await;
        }
        let (notices, is_full) = service.plane.lock().await.take_notices(NOTICES);
        wakeups.was_full(is_full);
        if !notices.is_empty() {
            for (program, of_program) in by_program(&service, notices).await {
                service.sessions.send_digests(program, digests(&service, &of_program));
            }
            sent = Instant::now();
        }
    }
}

/// Sorts notices by the program that owns the port. Notices of ports that no program has written since the start are dropped.
async fn by_program(service: &Service, notices: Vec<LearnNotice>) -> BTreeMap<Program, Vec<LearnNotice>> {
    let mut found: BTreeMap<Program, Vec<LearnNotice>> = BTreeMap::new();
    if service.programs.len() == 1 {
        found.insert(0, notices);
        return found;
    }
    let plane = service.plane.lock().await;
    for notice in notices {
        if let Some(program) = plane.notes.ports.program_of(&notice.flow.dst) {
            found.entry(program).or_default().push(notice);
        }
    }
    found
}

fn digests(service: &Service, notices: &[LearnNotice]) -> Vec<pb::DigestList> {
    let mut digests = Vec::new();
    for (v6, name) in [(false, "pipe.IngressDeparser.learn"), (true, "pipe.IngressDeparser.learn6")] {
        let Some(learn) = service.programs[0].tables.schema.learn(name) else {
            continue;
        };
        let of_version: Vec<&LearnNotice> = notices.iter().filter(|notice| notice.flow.is_v6() == v6).collect();
        for part in of_version.chunks(DIGEST) {
            let data = part.iter().map(|notice| digest_of(learn, notice)).collect();
            digests.push(pb::DigestList {
                digest_id: learn.id,
                list_id: 0,
                data,
                target: Some(all_pipes()),
            });
        }
    }
    digests
}

fn all_pipes() -> pb::TargetDevice {
    pb::TargetDevice {
        pipe_id: ALL_PIPES,
        ..pb::TargetDevice::default()
    }
}

fn digest_of(learn: &Learn, notice: &LearnNotice) -> pb::TableData {
    let FiveTuple { src, dst } = notice.flow;
    let (src_addr, dst_addr) = (octets(src.addr), octets(dst.addr));
    let (sport, dport) = (src.port.to_be_bytes(), dst.port.to_be_bytes());
    let (version, payload_type) = ([notice.rtp_version & 3], [notice.payload_type & 0x7f]);
    let (sequence, ssrc) = (notice.sequence.to_be_bytes(), notice.ssrc.to_be_bytes());
    let values: [&[u8]; 8] = [&src_addr, &dst_addr, &sport, &dport, &version, &payload_type, &sequence, &ssrc];
    pb::TableData {
        action_id: 0,
        fields: learn
            .fields
            .iter()
            .zip(values)
            .map(|(field, value)| stream(field.id, value))
            .collect(),
    }
}

async fn next_hops(service: Service) -> std::io::Result<()> {
    let fd = watch(service.plane.lock().await.events_fd()?)?;
    loop {
        // Every five seconds even without a report: neighbours are probed, and path MTUs grow again.
        if let Ok(ready) = tokio::time::timeout(HOUSEKEEPING, fd.readable()).await {
            ready?.clear_ready();
        }
        loop {
            let (moved, pending) = {
                let mut plane = service.plane.lock().await;
                (plane.handle_events(Instant::now()), plane.hops.0.is_pending())
            };
            follow(&service, moved).await;
            if !pending {
                break;
            }
        }
    }
}

/// Follows the host's policies. Entries that they forbid are held back at once, and their owner is notified until it has removed them.
async fn host_policy(service: Service) -> std::io::Result<()> {
    let fd = watch(service.plane.lock().await.policy_fd()?)?;
    loop {
        if let Ok(ready) = tokio::time::timeout(HOUSEKEEPING, fd.readable()).await {
            ready?.clear_ready();
        }
        if service.plane.lock().await.follow_policy() {
            judge(&service).await;
        }
        let held: Vec<FiveTuple> = service.plane.lock().await.relay.held().copied().collect();
        if !held.is_empty() {
            tell_held(&service, held).await;
        }
    }
}

/// Checks all entries, in slices.
async fn judge(service: &Service) {
    let mut cursor = Cursor::default();
    loop {
        let slice = Slice::begin();
        match service.plane.lock().await.hold_back(&mut cursor, || slice.has_more()) {
            Ok(false) => {}
            Ok(true) => return,
            Err(error) => {
                tracing::error!("the host's policy has changed, and not all entries follow: {error}");
                return;
            }
        }
        pause().await;
    }
}

async fn tell_held(service: &Service, held: Vec<FiveTuple>) {
    let mut by_program: BTreeMap<Program, Vec<FiveTuple>> = BTreeMap::new();
    for key in held {
        let program = match service.programs.len() {
            1 => Some(0),
            _ => service.plane.lock().await.notes.ports.program_of(&key.dst),
        };
        if let Some(program) = program {
            by_program.entry(program).or_default().push(key);
        }
    }
    for (program, keys) in by_program {
        let mut digests = Vec::new();
        for (v6, name) in [(false, "softswitch.host_policy"), (true, "softswitch.host_policy6")] {
            let Some(learn) = service.programs[program].tables.schema.learn(name) else {
                continue;
            };
            let of_version: Vec<&FiveTuple> = keys.iter().filter(|key| key.is_v6() == v6).collect();
            digests.extend(of_version.chunks(DIGEST).map(|part| pb::DigestList {
                digest_id: learn.id,
                list_id: 0,
                data: part.iter().map(|key| digest_of_key(learn, key)).collect(),
                target: Some(all_pipes()),
            }));
        }
        service.sessions.send_digests(program, digests);
    }
}

fn digest_of_key(learn: &Learn, key: &FiveTuple) -> pb::TableData {
    let (src, dst) = (octets(key.src.addr), octets(key.dst.addr));
    let (sport, dport) = (key.src.port.to_be_bytes(), key.dst.port.to_be_bytes());
    let values: [&[u8]; 4] = [&src, &dst, &sport, &dport];
    pb::TableData {
        action_id: 0,
        fields: learn
            .fields
            .iter()
            .zip(values)
            .map(|(field, value)| stream(field.id, value))
            .collect(),
    }
}

async fn path_mtus(service: Service) -> std::io::Result<()> {
    let mut wakeups = Wakeups::new(service.plane.lock().await.path_mtu_fd()?)?;
    loop {
        wakeups.wait().await?;
        let (moved, is_full) = service.plane.lock().await.take_path_mtus(Instant::now());
        wakeups.was_full(is_full);
        follow(&service, moved).await;
    }
}

/// Writes changed next hops into all entries and copies that use them, in slices.
async fn follow(service: &Service, moved: Vec<Moved>) {
    if moved.is_empty() {
        return;
    }
    let mut moves = Plane::moves(&moved);
    loop {
        let mut plane = service.plane.lock().await;
        let slice = Slice::begin();
        match plane.relay.follow(&mut moves, || slice.has_more()) {
            Ok(false) => {}
            Ok(true) => break,
            Err(error) => {
                tracing::error!("a route changed, and not all entries follow: {error}");
                break;
            }
        }
        drop(plane);
        pause().await;
    }
    follow_copies(service, &moved).await;
    // Replaced records name the former rows until the programs have released them.
    let round = service
        .plane
        .lock()
        .await
        .conference_tables()
        .and_then(|(tables, _)| tables.begin());
    if let Some(round) = round {
        pass(service, round).await;
    }
    service.plane.lock().await.hops.0.settle(moved);
}

async fn follow_copies(service: &Service, moved: &[Moved]) {
    let rows = moved.iter().map(|one| ((one.dst, one.src), one.row())).collect();
    let mut moves = shunt_replication::Moves::new(rows);
    loop {
        let mut plane = service.plane.lock().await;
        let Plane { conference, hops, .. } = &mut *plane;
        let Some(conference) = conference else { return };
        if conference.tables.follow(hops, &mut moves, COPIES) {
            return;
        }
        drop(plane);
        pause().await;
    }
}

/// Passes conference packets to the agent.
async fn agent_packets(service: Service) -> std::io::Result<()> {
    let Some(fd) = service.plane.lock().await.agent_fd()? else {
        return std::future::pending().await;
    };
    let mut wakeups = Wakeups::new(fd)?;
    let Some(described) = service.programs[0].tables.schema.learn("softswitch.packet").cloned() else {
        return std::future::pending().await;
    };
    loop {
        wakeups.wait().await?;
        let (frames, is_full) = service.plane.lock().await.take_agent_frames(FRAMES);
        wakeups.was_full(is_full);
        if frames.is_empty() {
            continue;
        }
        service
            .sessions
            .send_digests(0, frames.iter().map(|frame| packet_digest(&described, frame)).collect());
    }
}

fn packet_digest(described: &Learn, frame: &[u8]) -> pb::DigestList {
    let fields = described.fields.iter().map(|field| match field.size() {
        Some(2) => stream(field.id, (frame.len() as u16).to_be_bytes()),
        size => {
            let mut whole = frame.to_vec();
            whole.resize(size.unwrap_or(0), 0);
            stream(field.id, whole)
        }
    });
    let data = pb::TableData {
        action_id: 0,
        fields: fields.collect(),
    };
    pb::DigestList {
        digest_id: described.id,
        list_id: 0,
        data: vec![data],
        target: Some(all_pipes()),
    }
}

/// Waits for the programs, so that replaced conference records can be used again.
async fn rounds(service: Service) -> std::io::Result<()> {
    if service.plane.lock().await.conference.is_none() {
        return std::future::pending().await;
    }
    loop {
        let round = service
            .plane
            .lock()
            .await
            .conference_tables()
            .and_then(|(tables, _)| tables.begin());
        let Some(round) = round else {
            sleep(BETWEEN_ROUNDS).await;
            continue;
        };
        pass(&service, round).await;
    }
}

/// Waits without the lock, and frees the records that the round has waited for.
async fn pass(service: &Service, round: Round) {
    match tokio::task::spawn_blocking(move || round.run()).await {
        Ok(passed) => {
            if let Some((tables, hops)) = service.plane.lock().await.conference_tables() {
                tables.finish(hops, passed);
            }
        }
        Err(error) => tracing::error!("a round of conferences failed: {error}"),
    }
}

async fn owner_sign(service: Service) -> std::io::Result<()> {
    loop {
        service.show_owners().await;
        sleep(OWNER_SIGN).await;
    }
}

async fn idle(service: Service) -> std::io::Result<()> {
    let changed = std::sync::Arc::clone(&service.plane.lock().await.notes.idle_changed);
    let tables: Vec<(Program, bool)> = (0..service.programs.len())
        .flat_map(|program| [(program, false), (program, true)])
        .collect();
    let mut due = vec![Instant::now(); tables.len()];
    loop {
        let mut waits = Vec::new();
        for ((program, v6), due) in tables.iter().copied().zip(&mut due) {
            let interval = {
                let plane = service.plane.lock().await;
                let held = &plane.notes.idle[program][usize::from(v6)];
                (held.enable && held.notify).then(|| Duration::from_millis(held.interval.into()).max(LEAST_IDLE_POLL))
            };
            let Some(interval) = interval else { continue };
            if Instant::now() >= *due {
                *due = Instant::now() + interval;
                poll_idle(&service, program, v6).await;
            }
            waits.push(*due);
        }
        match waits.into_iter().min() {
            Some(due) => {
                let _ = tokio::time::timeout_at(due.into(), changed.notified()).await;
            }
            None => changed.notified().await,
        }
    }
}

/// Reports entries of a program and one IP version that have become idle, and forgets those that no longer exist.
async fn poll_idle(service: &Service, program: Program, v6: bool) {
    let which = usize::from(v6);
    let (client, least, generation) = {
        let held = &service.plane.lock().await.notes.idle[program][which];
        (held.client_id, u64::from(held.min_ttl), held.generation)
    };
    report_active(service, program, v6, client, generation).await;
    let mut cursor = Cursor::default();
    loop {
        let mut plane = service.plane.lock().await;
        if plane.notes.idle[program][which].generation != generation {
            return;
        }
        let Ok(clock) = plane.clock() else { return };
        let (slice, mut late, mut seen) = (Slice::begin(), Vec::new(), 0u32);
        let (reported, ports) = (&plane.notes.idle[program][which].reported, &plane.notes.ports);
        let ended = plane.relay.expired(&mut cursor, v6, clock, |found| {
            if let Some((entry, idle)) = found
                && !reported.contains_key(&entry.key)
                // An entry's own time-out applies, but never less than the attribute's minimum.
                && idle >= least
                && ports.program_of(&entry.key.dst) == Some(program)
            {
                late.push((entry.key, u64::from(entry.ttl_ms).max(least)));
            }
            seen += 1;
            if seen % 256 == 0 && !slice.has_more() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        for (key, ttl) in late {
            // A notice that does not fit into the client's queue is sent at the next poll.
            if !service
                .sessions
                .send_idle(client, notice(service, v6, &key, NotificationType::EntryIdle))
            {
                return;
            }
            plane.notes.idle[program][which].reported.insert(key, ttl);
        }
        match ended {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                tracing::error!("idle times cannot be read: {error}");
                return;
            }
        }
        drop(plane);
        pause().await;
    }
}

/// Reports idle entries that have had packets since.
async fn report_active(service: &Service, program: Program, v6: bool, client: u32, generation: u64) {
    let which = usize::from(v6);
    let mut from = Bound::Unbounded;
    loop {
        let mut plane = service.plane.lock().await;
        if plane.notes.idle[program][which].generation != generation {
            return;
        }
        let Ok(clock) = plane.clock() else { return };
        let (slice, mut gone, mut active, mut ended) = (Slice::begin(), Vec::new(), Vec::new(), true);
        for (key, ttl) in plane.notes.idle[program][which].reported.range((from, Bound::Unbounded)) {
            match plane.relay.stats(key, clock) {
                Ok(Some((_, stats))) if stats.idle_ms < *ttl => active.push(*key),
                Ok(None) => gone.push(*key),
                _ => {}
            }
            from = Bound::Excluded(*key);
            if !slice.has_more() {
                ended = false;
                break;
            }
        }
        for key in active.iter().chain(&gone) {
            plane.notes.idle[program][which].reported.remove(key);
        }
        drop(plane);
        for key in active {
            service
                .sessions
                .send_idle(client, notice(service, v6, &key, NotificationType::EntryActive));
        }
        if ended {
            return;
        }
        pause().await;
    }
}

fn notice(service: &Service, v6: bool, key: &FiveTuple, kind: NotificationType) -> pb::IdleTimeoutNotification {
    let table = service.programs[0].tables.all().find(|table| table.idle() == Some(usize::from(v6)));
    let (table_id, fields) = table.map_or((0, Vec::new()), |table| (table.schema().id, table.flow_key(key)));
    let value = Some(table_entry::Value::Key(pb::TableKey { fields }));
    pb::IdleTimeoutNotification {
        target: Some(all_pipes()),
        table_entry: Some(pb::TableEntry {
            table_id,
            value,
            ..pb::TableEntry::default()
        }),
        r#type: kind.into(),
    }
}
