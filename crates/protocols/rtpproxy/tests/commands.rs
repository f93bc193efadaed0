//! Commands: representative ones, edges, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use shunt_net::Endpoint;
use shunt_rtpproxy::{
    Command, Direction, Fault, Media, MediaFlags, ParseError, Request, Session, StreamVerb, Subcommand, Symmetry, build, datagram,
    keepalive_modifiers, line, split_datagram, with_new_port, with_notify_address,
};
use std::net::IpAddr;

fn parse(text: &str) -> Command<'_> {
    Command::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn media(text: &str) -> Media<'_> {
    parse(text).media().cloned().unwrap()
}

fn session(text: &str) -> Session<'_> {
    *parse(text).session().unwrap()
}

fn flags(modifiers: &str) -> MediaFlags<'_> {
    MediaFlags::parse(modifiers.as_bytes()).unwrap()
}

fn endpoint(text: &str) -> Endpoint {
    let address: std::net::SocketAddr = text.parse().unwrap();
    Endpoint::new(address.ip(), address.port())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_offer_of_opensips() {
    let (cookie, body) = split_datagram(b"27814_9051_12 Uc0,8,101 1-28350@10.91.1.2 10.91.1.2 6000 28350UACtag1;1\n").unwrap();
    assert_eq!(cookie, b"27814_9051_12");
    let command = Command::parse(body).unwrap();
    assert_eq!(command.modifiers, b"c0,8,101");
    let Request::Update(media) = &command.request else {
        panic!("{command:?}")
    };
    assert_eq!(media.flags.payload_types().collect::<Vec<_>>(), [0, 8, 101]);
    assert_eq!(media.session.call_id, b"1-28350@10.91.1.2");
    assert_eq!(media.endpoint(), Some(endpoint("10.91.1.2:6000")));
    assert_eq!((media.session.from.name, media.session.from.media), (&b"28350UACtag1"[..], Some(1)));
    assert!(media.session.to.is_none() && media.notify.is_none() && command.subcommands.is_empty() && command.arguments.is_empty());
}

#[test]
fn an_answer_of_the_second_media_line() {
    let answer = media("LEIc96,97 1-5300@10.91.1.2 10.91.2.2 7002 5300UACtag1;2 5297UAStag1;2");
    assert_eq!(answer.flags.directions, [Direction::External, Direction::Internal]);
    let to = answer.session.to.unwrap();
    assert_eq!(
        (answer.session.from.media, to.media, to.name, to.raw),
        (Some(2), Some(2), &b"5297UAStag1"[..], &b"5297UAStag1;2"[..])
    );
}

#[test]
fn ipv6_as_opensips_writes_it() {
    let answer = media("LEI6c0,8,101 c FD91:2:0:0:0:0:0:2 7000 a;1 b;1");
    assert!(answer.flags.ipv6);
    assert_eq!(answer.endpoint(), Some(endpoint("[fd91:2::2]:7000")));
    assert_eq!(media("U c ::ffff:192.0.2.1 7000 a;1").endpoint(), Some(endpoint("192.0.2.1:7000")));
}

#[test]
fn addresses_among_the_modifiers() {
    assert_eq!(
        (
            flags("R10.91.2.2c0,8").remote_address,
            flags("R10.91.2.2c0,8").payload_types().count()
        ),
        (Some(ip("10.91.2.2")), 2)
    );
    assert_eq!(flags("l10.91.2.1").local_address, Some(ip("10.91.2.1")));
    let auto = flags("6RFD91:2:0:0:0:0:0:2c0,8");
    assert_eq!((auto.remote_address, auto.codecs), (Some(ip("fd91:2::2")), Some(&b"0,8"[..])));
    let bracketed = flags("6R[fd91::c0]c8");
    assert_eq!(
        (bracketed.remote_address, bracketed.codecs),
        (Some(ip("fd91::c0")), Some(&b"8"[..]))
    );
    assert_eq!(flags("6lfd91:2::1").local_address, Some(ip("fd91:2::1")));
    let labelled = flags("6l{public.v6}c0w");
    assert_eq!(
        (labelled.local_label, labelled.local_address, labelled.codecs, labelled.weak),
        (Some(&b"public.v6"[..]), None, Some(&b"0"[..]), true)
    );
}

#[test]
fn all_modifiers() {
    let text = "uIeS6wZ20l10.0.0.9c0,101t30n c 10.0.0.1 6000 a;1";
    let (command, media) = (parse(text), media(text));
    let flags = media.flags;
    assert_eq!(flags.directions, [Direction::Internal, Direction::External]);
    assert_eq!(
        (flags.symmetry, flags.weak, flags.ipv6, flags.new_port),
        (Some(Symmetry::Symmetric), true, true, true)
    );
    assert_eq!(
        (flags.resize, flags.ttl, flags.local_address),
        (Some(20), Some(30), Some(ip("10.0.0.9")))
    );
    let parts: Vec<&[u8]> = command.media_modifiers().map(|part| part.unwrap().raw).collect();
    assert_eq!(
        parts,
        [&b"I"[..], b"e", b"S", b"6", b"w", b"Z20", b"l10.0.0.9", b"c0,101", b"t30", b"n"]
    );
}

#[test]
fn the_last_of_a_and_s_counts() {
    assert_eq!(flags("A").symmetry, Some(Symmetry::Asymmetric));
    assert_eq!(flags("SA").symmetry, Some(Symmetry::Asymmetric));
    assert_eq!(flags("AS").symmetry, Some(Symmetry::Symmetric));
    assert_eq!(flags("").symmetry, None);
}

#[test]
fn unknown_modifiers_are_kept() {
    let odd = flags("?c0q!t");
    assert_eq!((odd.unknown.as_slice(), odd.codecs), (&b"?q!t"[..], Some(&b"0"[..])));
    // As rtpproxy does: what is no payload type counts for nothing.
    assert_eq!(flags("c,,8,1234,").payload_types().collect::<Vec<_>>(), [8]);
}

#[test]
fn notify_arguments() {
    let with_to = media("U c 10.0.0.1 6000 a;1 b;1 tcp:127.0.0.1:9999 T222.4af857c");
    let notify = with_to.notify.unwrap();
    assert_eq!(
        (with_to.session.to.unwrap().name, notify.socket, notify.tag),
        (&b"b"[..], &b"tcp:127.0.0.1:9999"[..], Some(&b"T222.4af857c"[..]))
    );
    let without_to = media("U c 10.0.0.1 6000 a;1 /run/opensips/notify.sock tag%20with%20space");
    let notify = without_to.notify.unwrap();
    assert!(without_to.session.to.is_none());
    assert_eq!(
        (notify.socket, notify.tag),
        (&b"/run/opensips/notify.sock"[..], Some(&b"tag%20with%20space"[..]))
    );
}

#[test]
fn kamailio_s_notify_socket_without_tag() {
    let offer = media("U c 10.0.0.1 6000 a;1 13729UAStag1;1 xmlrpc:http://127.0.0.1:8000/RPC2");
    assert_eq!(offer.session.to.unwrap().name, b"13729UAStag1");
    let notify = offer.notify.unwrap();
    assert_eq!((notify.socket, notify.tag), (&b"xmlrpc:http://127.0.0.1:8000/RPC2"[..], None));
}

#[test]
fn queries() {
    let kamailio = session("Q 1-13949@10.91.1.2 13949UACtag1;1 13945UAStag1");
    assert_eq!((kamailio.from.media, kamailio.to.unwrap().media), (Some(1), None));
    let named = parse("Qv c a;1 b;1 ttl npkts_ina && S ttl=3600");
    assert!(matches!(named.request, Request::Query(_)) && named.has_modifier(b'V'));
    assert_eq!(
        (named.arguments, named.subcommands),
        (vec![&b"ttl"[..], b"npkts_ina"], vec![&b"S ttl=3600"[..]])
    );
}

#[test]
fn sub_commands_are_kept_as_sent() {
    let text = "U c 10.0.0.1 6000 a;1 b;1 && L 10.91.2.2  7000 && M3:1  D tcp:1.2.3.4:5 x";
    let command = parse(text);
    assert_eq!(command.subcommands, [&b"L 10.91.2.2  7000"[..], b"M3:1  D tcp:1.2.3.4:5 x"]);
    let answer = command.sub_lookup().unwrap().unwrap();
    assert_eq!(answer.endpoint(), Some(endpoint("10.91.2.2:7000")));
    assert_eq!((answer.session.call_id, answer.session.to.unwrap().media), (&b"c"[..], Some(1)));
    assert_eq!(parse("Q c a;1 b;1 && S ttl=25").sub_lookup(), Ok(None));
    assert_eq!(
        parse("U c 10.0.0.1 6000 a;1 b;1 && L x 7").sub_lookup().unwrap().unwrap().ip(),
        None
    );
    assert!(parse("U c 10.0.0.1 6000 a;1 b;1 && L 10.0.0.1 70000").sub_lookup().is_err());
}

#[test]
fn what_sub_commands_ask_for() {
    let steps = |text| parse(text).steps().collect::<Vec<_>>();
    assert_eq!(
        steps("Q c a;1 b;1 && S ttl=25 && Sr ttl=0 && S tos=184 && D && dW && D5"),
        [
            Subcommand::Ttl(25),
            Subcommand::Other,
            Subcommand::Other,
            Subcommand::Delete { weak: false },
            Subcommand::Delete { weak: true },
            Subcommand::Other
        ]
    );
    let lookup = steps("U c 10.0.0.1 6000 a;1 b;1 && T90 && L 10.0.0.2 7000 && M3:1 D");
    assert!(matches!(
        lookup.as_slice(),
        [Subcommand::Ttl(90), Subcommand::Lookup(media), Subcommand::Module] if media.port == 7000
    ));
    let copied = steps("U c 10.0.0.1 6000 a;1 b;1 && C other x;1 y;1");
    let [Subcommand::Copy(source)] = copied.as_slice() else {
        panic!("{copied:?}")
    };
    assert_eq!(
        (source.call_id, source.from.name, source.from.media),
        (&b"other"[..], &b"x"[..], Some(1))
    );
}

#[test]
fn the_null_address_and_the_dash() {
    let hold = media("U c 0.0.0.0 6000 a;1 b;1");
    assert!(hold.on_hold() && hold.endpoint().is_none());
    assert!(media("U6 c :: 6000 a;1 b;1").on_hold());
    let dash = media("L c - 0 a;1 b;1");
    assert!(dash.is_dash() && dash.port == 0 && dash.endpoint().is_none() && !dash.on_hold());
    let name = media("U c host.example 6000 a;1");
    assert!(name.endpoint().is_none() && !name.is_dash() && name.address == b"host.example");
}

#[test]
fn deletes() {
    let all = parse("Dw c fk tk");
    assert!(matches!(all.request, Request::Delete(_)) && all.has_modifier(b'w'));
    assert_eq!(
        (all.session().unwrap().from.media, all.session().unwrap().to.unwrap().raw),
        (None, &b"tk"[..])
    );
    let one = session("D c fm;2 tm;2");
    assert_eq!((one.from.media, one.to.unwrap().media), (Some(2), Some(2)));
    assert_eq!(session("D c fm").to, None);
}

#[test]
fn other_verbs() {
    let play = parse("P20 c /var/announce 0,8 a;1 b;1");
    let Request::Stream(StreamVerb::Play, about) = play.request else {
        panic!("{play:?}")
    };
    assert_eq!((about.from.name, about.to.unwrap().name), (&b"a"[..], &b"b"[..]));
    assert_eq!(play.arguments, [&b"/var/announce"[..], b"0,8"]);
    let copy = parse("C c udp:10.0.0.9:4000 a;1 b;1");
    assert!(matches!(copy.request, Request::Stream(StreamVerb::Copy, _)) && copy.arguments == [b"udp:10.0.0.9:4000"]);
    assert!(matches!(parse("S c a").request, Request::Stream(StreamVerb::StopPlaying, _)));
    assert!(matches!(parse("R c a").request, Request::Stream(StreamVerb::Record, _)));
    assert!(matches!(parse("N c a").request, Request::Stream(StreamVerb::StopRecording, _)));
    assert_eq!(
        (parse("vf 20081102").request, parse("VF 20081102").arguments),
        (Request::Capability, vec![&b"20081102"[..]])
    );
    assert!(parse("Ib").request == Request::Info && parse("Ib").has_modifier(b'B') && parse("X").request == Request::DeleteAll);
    assert!(parse("V").request == Request::Version && parse("Gv nsess_created").arguments == [b"nsess_created"]);
    let unknown = parse("Zebra x y");
    assert_eq!(
        (unknown.request, unknown.arguments.len(), unknown.raw),
        (Request::Unknown, 2, &b"Zebra x y"[..])
    );
}

#[test]
fn a_media_index_is_plain_decimal_or_part_of_the_tag() {
    for tag in ["t;", "t;01", "t;x", "t;-1", "t;123456"] {
        let text = format!("D c {tag}");
        let about = session(&text);
        assert_eq!((about.from.name, about.from.media), (tag.as_bytes(), None));
    }
    assert_eq!(
        (session("D c t;0").from.media, session("D c a;b;12").from.name),
        (Some(0), &b"a;b"[..])
    );
}

#[test]
fn refusals_say_what_and_where() {
    let refused: &[(&[u8], usize, Fault)] = &[
        (b"", 0, Fault::NoCommand),
        (b" \t", 0, Fault::NoCommand),
        (b"&& S ttl=3", 0, Fault::NoCommand),
        (b"U call1", 7, Fault::Missing('U', "address")),
        (b"U call1 10.0.0.1 6000", 21, Fault::Missing('U', "from-tag")),
        (b"L", 1, Fault::Missing('L', "call-id")),
        (b"D c", 3, Fault::Missing('D', "from-tag")),
        (b"P c file 0", 10, Fault::Missing('P', "from-tag")),
        (b"VF", 2, Fault::Missing('V', "date")),
        (b"U c 10.0.0.1 port a;1", 13, Fault::Port),
        (b"U c 10.0.0.1 65536 a;1", 13, Fault::Port),
        (b"U c 10.0.0.1 -1 a;1", 13, Fault::Port),
        (b"UAc c 10.0.0.1 1 a;1", 2, Fault::Codecs),
        (b"Uc0c8 c 10.0.0.1 1 a;1", 3, Fault::Codecs),
        (b"Uc c 10.0.0.1 1 a;1", 1, Fault::Codecs),
        (b"UZ c 10.0.0.1 1 a;1", 1, Fault::Resize),
        (b"UARx c 10.0.0.1 1 a;1", 2, Fault::RemoteAddress),
        (b"Ul999.1.1.1 c 10.0.0.1 1 a;1", 1, Fault::LocalAddress),
        (b"UAl{} c 10.0.0.1 1 a;1", 2, Fault::LocalAddress),
        (b"Ul{public c 10.0.0.1 1 a;1", 1, Fault::LocalAddress),
        (b"U c 10.0.0.1 1 a;1 tcp:1.2.3.4:5 T%zz", 34, Fault::NotifyTag),
        (b"D c a\0b", 5, Fault::Nul),
        (b"Q c a;1 b;1 &&", 14, Fault::NothingAfterAmpersands),
        (b"Q c a;1 b;1 && && S ttl=1", 14, Fault::NothingAfterAmpersands),
    ];
    for (body, at, fault) in refused {
        assert_eq!(
            Command::parse(body),
            Err(ParseError { fault: *fault, at: *at }),
            "{}",
            body.escape_ascii()
        );
    }
}

#[test]
fn datagrams() {
    assert_eq!(split_datagram(b"ckNL V\n"), Ok((&b"ckNL"[..], &b"V"[..])));
    assert_eq!(split_datagram(b"c  Q  x \r\n"), Ok((&b"c"[..], &b"Q  x "[..])));
    assert_eq!(split_datagram(b"onlyacookie"), Ok((&b"onlyacookie"[..], &b""[..])));
    assert!(split_datagram(b"").is_err() && split_datagram(b" \r\n").is_err());
}

#[test]
fn commands_are_passed_on_with_another_cookie_and_more_sub_commands() {
    let odd = b"U?q  c \t10.0.0.1 6000 a;1 && M3:1  D x";
    assert_eq!(
        datagram(b"k7", odd, &[b"S ttl=9"]),
        b"k7 U?q  c \t10.0.0.1 6000 a;1 && M3:1  D x && S ttl=9"
    );
    assert_eq!(line(b"Q c a", &[]), b"Q c a\n");
}

#[test]
fn builders() {
    let target = build::Target {
        call_id: b"c",
        from: b"a;1",
        to: None,
    };
    let both = build::Target {
        to: Some(b"b;1"),
        ..target
    };
    assert_eq!(
        build::update(b"c0,8", target, Some(ip("10.0.0.1")), 6000, None).unwrap(),
        b"Uc0,8 c 10.0.0.1 6000 a;1"
    );
    let notify = Some((&b"tcp:127.0.0.1:9"[..], &b"T1.2"[..]));
    assert_eq!(
        build::update(b"", both, Some(ip("10.0.0.1")), 6000, notify).unwrap(),
        b"U c 10.0.0.1 6000 a;1 b;1 tcp:127.0.0.1:9 T1.2"
    );
    assert_eq!(build::lookup(b"c0,8,101", both, None, 0, None).unwrap(), b"Lc0,8,101 c - 0 a;1 b;1");
    assert_eq!(build::lookup(b"", both, None, 0, Some(3600)).unwrap(), b"L c - 0 a;1 b;1 && T3600");
    let bare = build::Target {
        call_id: b"c",
        from: b"a",
        to: Some(b"b"),
    };
    assert_eq!(build::delete(bare, false).unwrap(), b"D c a b");
    assert_eq!(build::delete(both, true).unwrap(), b"Dw c a;1 b;1");
    assert_eq!(build::query(both, &[], false, Some(3600)).unwrap(), b"Q c a;1 b;1 && S ttl=3600");
    assert_eq!(build::query(both, &[b"ttl"], true, None).unwrap(), b"Qv c a;1 b;1 ttl");
    assert_eq!(
        (build::version(), build::capability(20251015)),
        (b"V".to_vec(), b"VF 20251015".to_vec())
    );
}

#[test]
fn builders_refuse_what_would_be_another_command() {
    let target = build::Target {
        call_id: b"c",
        from: b"a",
        to: Some(b"b"),
    };
    assert!(build::update(b"", build::Target { call_id: b"c d", ..target }, None, 0, None).is_err());
    assert!(build::update(b"", build::Target { call_id: b"", ..target }, None, 0, None).is_err());
    assert!(build::delete(build::Target { from: b"a\nD x", ..target }, false).is_err());
    assert!(build::delete(build::Target { call_id: b"&&", ..target }, false).is_err());
    assert!(build::delete(build::Target { call_id: b"a\0", ..target }, false).is_err());
    assert!(build::query(target, &[], false, Some(0)).is_err());
    assert!(build::query(build::Target { to: None, ..target }, &[b"ttl"], false, None).is_err());
}

#[test]
fn a_keep_alive_repeats_state_and_takes_no_new_port() {
    assert_eq!(keepalive_modifiers(&parse("LEISnZ20c0,8 c 10.0.0.1 6000 a;1 b;1")), b"EISZ20c0,8");
    assert_eq!(
        with_new_port(&parse("Uc0  c 10.0.0.1 6000 a;1 && L 1.2.3.4 5")),
        b"UNc0 c 10.0.0.1 6000 a;1"
    );
}

#[test]
fn the_sender_s_own_address_goes_into_the_notify_socket() {
    let command = parse("Uc0  n3 10.91.1.2 6000 f;1 tcp:%%CC_SELF%%:9999 T777.%25%25CC_SELF");
    let expected = b"Uc0  n3 10.91.1.2 6000 f;1 tcp:192.0.2.7:9999 T777.%25%25CC_SELF";
    assert_eq!(with_notify_address(&command, ip("192.0.2.7")).unwrap(), expected);
    let six = with_notify_address(&command, ip("2001:db8::7")).unwrap();
    assert!(String::from_utf8(six).unwrap().contains(" tcp:[2001:db8::7]:9999 "));
    assert_eq!(
        with_notify_address(&parse("U c 10.0.0.1 6000 %%CC_SELF%%;1"), ip("192.0.2.7")),
        None
    );
}
