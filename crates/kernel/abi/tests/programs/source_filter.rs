//! The source filter: packets that must not reach the relay server, whatever their shape, and entries that stop dropping them.

use crate::frame::{
    AUTHENTICATION, Check, DESTINATION, HOP_BY_HOP, MORE_FRAGMENTS, ROUTING, SERVICE_VLAN, Udp, VLAN, fragment6, padding6, rtp,
};
use crate::plane::{DROP, Entry, IDLE, PASS, Plane, REDIRECT, Setup};
use crate::relaying::{sent, v4, v6};
use shunt_abi::relay::reason;

const FILTERED: u16 = 30000;
const SECOND: i64 = 1_000_000_000;

/// Two entries, media ports, and a port of each address whose source filter admits 10.1.0.9 and fd01::9.
fn plane(drop: bool) -> Option<Plane> {
    let mut plane = Plane::load(Setup { drop, ..Setup::default() })?;
    for entry in [v4(), v6()] {
        plane.insert(&entry);
    }
    for addr in ["10.1.0.1", "fd01::1"] {
        plane.media(addr, 16384, 32767);
    }
    plane.allow("10.1.0.1:30000", &["10.1.0.9"], true);
    plane.allow("[fd01::1]:30000", &["10.1.0.8", "fd01::9"], true);
    Some(plane)
}

fn from(packet: &Udp, src: &str) -> Udp {
    packet.with(|packet| packet.src.set_ip(src.parse().expect("an address")))
}

fn other_source(entry: &Entry) -> Udp {
    from(&sent(entry), if entry.src.is_ipv4() { "10.1.0.66" } else { "fd01::66" })
}

#[test]
fn an_entry_in_use_drops_other_sources_while_it_has_an_owner() {
    let Some(mut plane) = plane(true) else { return };
    for entry in [v4(), v6()] {
        plane.expect("another source", &other_source(&entry).frame(), DROP, reason::SOURCE_MISMATCH);
        let port = sent(&entry).with(|packet| packet.src.set_port(4999));
        plane.expect("another source port", &port.frame(), DROP, reason::SOURCE_MISMATCH);
        plane.expect("its own source", &sent(&entry).frame(), REDIRECT, reason::RELAYED);
        assert_eq!(plane.detail(entry.dst).source_mismatch, 4);
    }
}

#[test]
fn without_a_live_owner_other_sources_pass_as_at_a_port_without_an_entry() {
    let Some(mut plane) = plane(true) else { return };
    plane.own_for(-SECOND);
    for entry in [v4(), v6()] {
        plane.notices();
        plane.expect("another source", &other_source(&entry).frame(), PASS, reason::MISS);
        assert_eq!(plane.notices().len(), 2, "a learn notice for each of two packets");
        assert_eq!(plane.detail(entry.dst).source_mismatch, 2, "they are counted all the same");
        plane.expect("its own source", &sent(&entry).frame(), REDIRECT, reason::RELAYED);
    }
    // The owner is back.
    plane.own_for(3600 * SECOND);
    plane.expect("another source", &other_source(&v4()).frame(), DROP, reason::SOURCE_MISMATCH);
}

#[test]
fn filters_whose_owner_is_gone_keep_nobody_out() {
    let Some(plane) = plane(true) else { return };
    plane.block("10.1.0.66", 0, true);
    plane.greylist("10.1.0.1", 16384, 32767);
    let to = |port: u16| from(&other_source(&v4()), "10.1.0.67").with(|packet| packet.dst.set_port(port));
    let cases = [
        ("blocklist", from(&to(30002), "10.1.0.66")),
        ("source filter", to(FILTERED)),
        ("greylist", to(30004)),
    ];
    for (what, packet) in &cases {
        plane.expect(what, &packet.frame(), DROP, reason::BLOCKED);
    }
    // The client of the filters is gone, that of the entries not: another program's, for instance.
    plane.filter_for(-SECOND);
    for (what, packet) in &cases {
        plane.expect(what, &packet.frame(), PASS, reason::MISS);
    }
    for (what, packet, why) in hidden() {
        plane.expect(what, &packet.frame(), PASS, why);
    }
    plane.expect("an entry", &other_source(&v4()).frame(), DROP, reason::SOURCE_MISMATCH);
    plane.filter_for(3600 * SECOND);
    for (what, packet) in &cases[..2] {
        plane.expect(what, &packet.frame(), DROP, reason::BLOCKED);
    }
    plane.own_for(-SECOND);
    plane.expect("without an owner of all entries", &cases[1].1.frame(), DROP, reason::BLOCKED);
}

#[test]
fn a_greylisted_port_admits_who_sends_on_at_any_rate() {
    let Some(plane) = plane(true) else { return };
    plane.greylist("10.1.0.1", 16384, 32767);
    let to = |src: &str, port: u16| from(&other_source(&v4()), src).with(|packet| packet.dst.set_port(port)).frame();
    let verdict = |packet: &[u8]| plane.run("native", packet).verdict;
    for _ in 0..4 {
        assert_eq!(verdict(&to("10.1.0.71", 30002)), DROP);
    }
    assert_eq!(verdict(&to("10.1.0.71", 30002)), PASS, "the fifth packet");
    // Sparse senders: their second packet passes. A scanner's first packet to each port does not, however long it scans.
    let gaps = [250, 400, 1000];
    for (n, gap) in gaps.into_iter().enumerate() {
        let source = format!("10.1.0.{}", 80 + n);
        assert_eq!(verdict(&to(&source, 30002)), DROP);
        std::thread::sleep(std::time::Duration::from_millis(gap));
        assert_eq!(
            verdict(&to(&source, 30003)),
            PASS,
            "one packet each {gap} ms, its RTCP at the next port"
        );
        assert_eq!(verdict(&to(&source, 30006)), DROP, "at another port it begins anew");
    }
}

#[test]
fn an_idle_entry_lets_other_sources_pass_until_its_own_sends_again() {
    let Some(mut plane) = plane(true) else { return };
    for entry in [v4(), v6()] {
        let idle = plane.tick().wrapping_sub(IDLE);
        plane.set_last_jiffies(entry.dst, idle);
        plane.expect("another source", &other_source(&entry).frame(), PASS, reason::MISS);
        plane.expect("its own source", &sent(&entry).frame(), REDIRECT, reason::RELAYED);
        plane.expect("another source", &other_source(&entry).frame(), DROP, reason::SOURCE_MISMATCH);
    }
}

#[test]
fn an_entry_that_drops_no_more_leaves_the_port_to_its_filters() {
    let Some(mut plane) = plane(true) else { return };
    plane.own_for(-SECOND);
    let packet = other_source(&v4());
    plane.allow("10.1.0.1:20000", &["10.1.0.9"], true);
    plane.expect("a source filter", &packet.frame(), DROP, reason::BLOCKED);
    plane.expect("an allowed source", &from(&packet, "10.1.0.9").frame(), PASS, reason::MISS);
    plane.allow("10.1.0.1:20000", &["10.1.0.9"], false);
    plane.expect("a source filter whose time is over", &packet.frame(), PASS, reason::MISS);
    plane.block("10.1.0.66", 0, true);
    plane.expect("the blocklist", &packet.frame(), DROP, reason::BLOCKED);
    plane.block("10.1.0.66", 0, false);
    plane.expect("the blocklist, expired", &packet.frame(), PASS, reason::MISS);
    plane.greylist("10.1.0.1", 16384, 32767);
    let outcome = plane.run("native", &packet.frame());
    assert_eq!(outcome.verdict, DROP, "the greylist");
    assert_eq!(plane.detail(v4().dst).source_mismatch, 11);
    // A port that is no media port.
    let other = Entry::new("10.1.0.2:4000", "10.1.0.1:16000", "10.2.0.1:20002", "10.2.0.2:6000");
    plane.insert(&other);
    plane.expect("no media port", &other_source(&other).frame(), PASS, reason::NOT_MEDIA);
}

#[test]
fn a_port_with_several_sources_drops_others_while_one_of_them_is_in_use() {
    let Some(mut plane) = plane(true) else { return };
    let second = Entry::new("10.1.0.3:5000", "10.1.0.1:20000", "10.2.0.1:20010", "10.2.0.2:6010");
    plane.insert_overflow(&second);
    let packet = other_source(&v4()).frame();
    let idle = plane.tick().wrapping_sub(IDLE);
    plane.expect("both in use", &packet, DROP, reason::SOURCE_MISMATCH);
    plane.set_last_jiffies(v4().dst, idle);
    plane.expect("the overflow entry in use", &packet, DROP, reason::SOURCE_MISMATCH);
    plane.set_overflow_jiffies(v4().dst, idle);
    plane.expect("neither in use", &packet, PASS, reason::MISS);
    plane.expect("the overflow entry's source", &sent(&second).frame(), REDIRECT, reason::RELAYED);
    plane.expect("the overflow entry in use again", &packet, DROP, reason::SOURCE_MISMATCH);
    plane.remove(v4().dst);
    plane.expect("only the overflow entry left", &packet, DROP, reason::SOURCE_MISMATCH);
    plane.set_overflow_jiffies(v4().dst, idle);
    plane.expect("the only entry idle", &packet, PASS, reason::MISS);
    plane.set_overflow_jiffies(v4().dst, plane.tick());
    plane.own_for(-SECOND);
    plane.expect("no owner", &packet, PASS, reason::MISS);
    assert_eq!(plane.detail(v4().dst).source_mismatch, 14);
}

#[test]
fn entries_without_a_slot_drop_no_other_source() {
    let Some(mut plane) = plane(true) else { return };
    let loose = Entry::new("10.1.0.4:5000", "10.1.0.1:31000", "10.2.0.1:20012", "10.2.0.2:6012");
    plane.insert_loose(&loose);
    plane.expect("another source", &other_source(&loose).frame(), PASS, reason::MISS);
    plane.expect("its own source", &sent(&loose).frame(), REDIRECT, reason::RELAYED);
}

/// IPv4 and IPv6 packets that are not relayed, each with the reason, made of a plain packet.
fn shapes(plain4: &Udp, plain6: &Udp) -> Vec<(&'static str, Udp, reason)> {
    let four = |change: &dyn Fn(&mut Udp)| plain4.with(change);
    let six = |change: &dyn Fn(&mut Udp)| plain6.with(change);
    let chain = |extensions: Vec<(u8, Vec<u8>)>| plain6.with(|packet| packet.extensions = extensions);
    let options = reason::HAS_OPTIONS;
    vec![
        ("IPv4 options", four(&|p| p.options = vec![1; 4]), options),
        (
            "IPv4, all the options there is room for",
            four(&|p| p.options = vec![1; 40]),
            options,
        ),
        (
            "IPv4 options behind a tag",
            four(&|p| {
                p.options = vec![1; 8];
                p.tags = vec![(VLAN, 5)]
            }),
            options,
        ),
        ("IPv4, first fragment", four(&|p| p.fragment = MORE_FRAGMENTS), reason::FRAGMENT),
        (
            "IPv4, first fragment with options",
            four(&|p| {
                p.fragment = MORE_FRAGMENTS;
                p.options = vec![1; 8]
            }),
            options,
        ),
        (
            "IPv4, first fragment with the UDP header alone",
            four(&|p| {
                p.fragment = MORE_FRAGMENTS;
                p.cut = Some(8)
            }),
            reason::FRAGMENT,
        ),
        ("IPv4, the reserved flag", four(&|p| p.fragment = 0x8000), reason::FRAGMENT),
        ("IPv4, TTL 1", four(&|p| p.ttl = 1), reason::TTL_EXPIRED),
        (
            "IPv4, UDP length shorter than the packet",
            four(&|p| p.udp_length = Some(20)),
            reason::MALFORMED,
        ),
        (
            "IPv4, UDP length longer than the packet",
            four(&|p| p.udp_length = Some(400)),
            reason::MALFORMED,
        ),
        ("IPv4, two tags", four(&|p| p.tags = vec![(VLAN, 0), (VLAN, 0)]), reason::NOT_IP),
        ("IPv4, four tags", four(&|p| p.tags = vec![(VLAN, 0); 4]), reason::NOT_IP),
        ("IPv4, service tag", four(&|p| p.tags = vec![(SERVICE_VLAN, 0)]), reason::NOT_IP),
        ("IPv6, hop limit 1", six(&|p| p.ttl = 1), reason::TTL_EXPIRED),
        ("IPv6, no UDP checksum", six(&|p| p.check = Check::Zero), reason::NO_CHECKSUM),
        ("IPv6, UDP length 0", six(&|p| p.udp_length = Some(0)), reason::MALFORMED),
        ("IPv6 hop-by-hop options", chain(vec![padding6(HOP_BY_HOP, 1)]), options),
        (
            "IPv6 hop-by-hop options and no length, as a jumbogram",
            chain(vec![padding6(HOP_BY_HOP, 1)]).with(|p| p.ip_length = Some(0)),
            options,
        ),
        ("IPv6 destination options", chain(vec![padding6(DESTINATION, 3)]), options),
        ("IPv6 routing header", chain(vec![(ROUTING, vec![0; 7])]), options),
        (
            "IPv6 authentication header",
            chain(vec![(AUTHENTICATION, [&[4], &[0u8; 22][..]].concat())]),
            options,
        ),
        ("IPv6, first fragment", chain(vec![fragment6(0, true)]), reason::FRAGMENT),
        (
            "IPv6, whole packet with a fragment header",
            chain(vec![fragment6(0, false)]),
            reason::FRAGMENT,
        ),
        (
            "IPv6, a fragment header in another",
            chain(vec![fragment6(0, true), fragment6(0, true)]),
            reason::FRAGMENT,
        ),
        (
            "IPv6, options in front of and behind a fragment header",
            chain(vec![
                padding6(HOP_BY_HOP, 1),
                padding6(DESTINATION, 1),
                fragment6(0, true),
                padding6(DESTINATION, 1),
            ]),
            options,
        ),
        (
            "IPv6, sixteen extension headers",
            chain(vec![padding6(DESTINATION, 1); 16]),
            options,
        ),
    ]
}

#[test]
fn the_filter_applies_to_packets_of_any_shape() {
    let Some(mut plane) = plane(true) else { return };
    let mut seen = [0, 0];
    // At a port with an entry.
    for (what, packet, why) in shapes(&other_source(&v4()), &other_source(&v6())) {
        plane.expect(what, &packet.frame(), DROP, reason::SOURCE_MISMATCH);
        let (entry, count) = if packet.src.is_ipv4() { (v4(), 0) } else { (v6(), 1) };
        seen[count] += 2;
        assert_eq!(plane.detail(entry.dst).source_mismatch, seen[count], "{what}");
        let own = packet.with(|packet| packet.src = entry.src);
        plane.expect(what, &own.frame(), PASS, why);
        assert_eq!(plane.detail(entry.dst).source_mismatch, seen[count], "{what}: from its own source");
    }
    // At a port with a source filter alone.
    let filtered = |entry: &Entry| other_source(entry).with(|packet| packet.dst.set_port(FILTERED));
    for (what, packet, why) in shapes(&filtered(&v4()), &filtered(&v6())) {
        plane.expect(what, &packet.frame(), DROP, reason::BLOCKED);
        let allowed = from(&packet, if packet.src.is_ipv4() { "10.1.0.9" } else { "fd01::9" });
        plane.expect(what, &allowed.frame(), PASS, why);
    }
    // At a port that nothing filters, and at one that is not a media port.
    for port in [30002, 5060] {
        let open = |entry: &Entry| other_source(entry).with(|packet| packet.dst.set_port(port));
        for (what, packet, why) in shapes(&open(&v4()), &open(&v6())) {
            plane.expect(what, &packet.frame(), PASS, why);
        }
    }
    assert!(plane.notices().is_empty(), "such packets are not learned from");
}

#[test]
fn a_source_on_the_blocklist_is_kept_out_in_any_shape() {
    let Some(plane) = plane(true) else { return };
    plane.block("10.1.0.66", 4000, true);
    plane.block("fd01::66", 0, true);
    let open = |entry: &Entry| other_source(entry).with(|packet| packet.dst.set_port(30002));
    for (what, packet, _) in shapes(&open(&v4()), &open(&v6())) {
        plane.expect(what, &packet.frame(), DROP, reason::BLOCKED);
    }
}

#[test]
fn an_idle_or_ownerless_entry_lets_packets_of_any_shape_pass() {
    let Some(mut plane) = plane(true) else { return };
    let idle = plane.tick().wrapping_sub(IDLE);
    for entry in [v4(), v6()] {
        plane.set_last_jiffies(entry.dst, idle);
    }
    for (what, packet, why) in shapes(&other_source(&v4()), &other_source(&v6())) {
        plane.expect(what, &packet.frame(), PASS, why);
    }
}

#[test]
fn where_the_policy_is_to_pass_nothing_is_dropped() {
    let Some(mut plane) = plane(false) else { return };
    plane.block("fd01::66", 0, true);
    plane.expect("another source", &other_source(&v4()).frame(), PASS, reason::SOURCE_MISMATCH);
    for (what, packet, why) in shapes(&other_source(&v4()), &other_source(&v6())) {
        plane.expect(what, &packet.frame(), PASS, why);
    }
    for (what, packet, why) in hidden() {
        plane.expect(what, &packet.frame(), PASS, why);
    }
    assert_ne!(plane.detail(v4().dst).source_mismatch, 0);
}

/// Packets whose ports the kernel may find, and the programs do not.
fn hidden() -> Vec<(&'static str, Udp, reason)> {
    let tiny = sent(&v4()).with(|packet| {
        packet.fragment = MORE_FRAGMENTS;
        packet.cut = Some(7);
    });
    let six = |extensions: Vec<(u8, Vec<u8>)>, cut: Option<usize>| {
        sent(&v6()).with(|packet| {
            packet.extensions = extensions;
            packet.cut = cut;
        })
    };
    vec![
        ("IPv4, a first fragment of less than the UDP header", tiny, reason::FRAGMENT),
        (
            "IPv6, a first fragment of less than the UDP header",
            six(vec![fragment6(0, true)], Some(4)),
            reason::FRAGMENT,
        ),
        (
            "IPv6, a first fragment without all headers",
            six(vec![fragment6(0, true), padding6(DESTINATION, 1)], Some(0)),
            reason::FRAGMENT,
        ),
        (
            "IPv6, seventeen extension headers",
            six(vec![padding6(DESTINATION, 1); 17], None),
            reason::HAS_OPTIONS,
        ),
    ]
}

#[test]
fn ports_that_cannot_be_read_are_no_way_past_the_filter() {
    let Some(plane) = plane(true) else { return };
    for (what, packet, why) in hidden() {
        plane.expect(what, &packet.frame(), DROP, reason::BLOCKED);
        let elsewhere = packet.with(|packet| {
            packet.dst.set_ip(
                if packet.dst.is_ipv4() { "10.1.0.7" } else { "fd01::7" }
                    .parse()
                    .expect("an address"),
            )
        });
        plane.expect(what, &elsewhere.frame(), PASS, why);
    }
}

#[test]
fn later_fragments_and_what_the_kernel_drops_itself_pass() {
    let Some(plane) = plane(true) else { return };
    let four = other_source(&v4());
    let six = other_source(&v6());
    let chain = |extensions: Vec<(u8, Vec<u8>)>| six.with(|packet| packet.extensions = extensions);
    let cases = [
        (
            "IPv4, later fragment",
            four.with(|p| p.fragment = MORE_FRAGMENTS | 100),
            reason::FRAGMENT,
        ),
        ("IPv4, last fragment", four.with(|p| p.fragment = 100), reason::FRAGMENT),
        ("IPv6, later fragment", chain(vec![fragment6(800, true)]), reason::FRAGMENT),
        ("IPv6, last fragment", chain(vec![fragment6(800, false)]), reason::FRAGMENT),
        (
            "IPv4, shorter than the UDP header",
            four.with(|p| p.cut = Some(7)),
            reason::MALFORMED,
        ),
        (
            "IPv6, shorter than the UDP header",
            six.with(|p| p.cut = Some(7)),
            reason::MALFORMED,
        ),
        (
            "IPv6, no next header",
            chain(vec![(DESTINATION, vec![0; 7]), (59, vec![0; 7])]),
            reason::HAS_OPTIONS,
        ),
        (
            "IPv6, an extension header beyond the packet",
            chain(vec![(DESTINATION, [&[255], &[0u8; 6][..]].concat())]),
            reason::HAS_OPTIONS,
        ),
    ];
    for (what, packet, why) in cases {
        plane.expect(what, &packet.frame(), PASS, why);
    }
    let mut version = four.frame();
    version[14] = 0x55;
    plane.expect("IP version 5", &version, PASS, reason::HAS_OPTIONS);
    let long = four.with(|p| p.payload = rtp(1, 400)).frame();
    plane.expect("cut off", &long[..200], PASS, reason::MALFORMED);
}
