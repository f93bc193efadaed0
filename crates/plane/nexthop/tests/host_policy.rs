//! The host's output path as the real kernel has it: IPsec, policy routing, netfilter. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sched::{CloneFlags, setns};
use nix::unistd::Uid;
use shunt_nexthop::{Flow, HostPolicy};

const RELAY: &str = "10.91.0.1:35000";
const PHONE: &str = "192.0.2.7:4000";
const RELAY6: &str = "[fd91::1]:35000";
const PHONE6: &str = "[2001:db8::7]:4000";

/// A network namespace with two uplinks, and nothing else configured.
struct Host(String);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

impl Host {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let host = Self(format!("policy-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        assert!(Command::new("ip").args(["netns", "add", &host.0]).status().unwrap().success());
        host.run("ip link set lo up");
        for n in 0..2 {
            host.run(&format!("ip link add up{n} type veth peer name far{n}"));
            host.run(&format!("ip address add 10.9{}.0.1/24 dev up{n}", n + 1));
            host.run(&format!("ip address add fd9{}::1/64 dev up{n} nodad", n + 1));
            host.run(&format!("ip link set up{n} up"));
            host.run(&format!("ip link set far{n} up"));
            host.run(&format!("ip route add default via 10.9{}.0.2 table 10{n}", n + 1));
            host.run(&format!("ip route add default via fd9{}::2 dev up{n} table 10{n}", n + 1));
        }
        host.run("ip route add default via 10.91.0.2");
        host.run("ip route add default via fd91::2 dev up0");
        host
    }

    fn run(&self, command: &str) {
        let done = Command::new("ip")
            .args(["netns", "exec", &self.0, "sh", "-c", command])
            .output()
            .unwrap();
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// What the policy says of a flow once it has taken in all that was configured.
    fn denies(policy: &mut HostPolicy, src: &str, dst: &str) -> Option<String> {
        let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        policy.follow();
        let leaving = Flow { src, dst, dscp: None };
        let arriving = Flow {
            src: if dst.is_ipv4() {
                "198.51.100.3:5000"
            } else {
                "[2001:db8:3::3]:5000"
            }
            .parse()
            .unwrap(),
            dst: src,
            dscp: None,
        };
        policy.denies(&arriving, &leaving)
    }
}

fn on_host(test: impl FnOnce(&Host) + Send) {
    if !Uid::effective().is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: network namespaces need root");
        return;
    }
    let host = Host::new();
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                setns(File::open(format!("/run/netns/{}", host.0)).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
                test(&host);
            })
            .join()
            .unwrap();
    });
}

/// Each line configures the host. `=` before it: packets to the phones may still be sent. `4`, `6`: only that IP version may not.
fn each(lines: &[(&str, &str)]) {
    for &(expected, line) in lines {
        on_host(|host| {
            let mut policy = HostPolicy::new().unwrap();
            let found = |policy: &mut HostPolicy| {
                let (v4, v6) = (Host::denies(policy, RELAY, PHONE), Host::denies(policy, RELAY6, PHONE6));
                let word = match (&v4, &v6) {
                    (None, None) => "=",
                    (Some(_), None) => "4",
                    (None, Some(_)) => "6",
                    (Some(_), Some(_)) => "46",
                };
                (word, v4, v6)
            };
            assert_eq!(found(&mut policy).0, "=", "nothing is configured");
            host.run(line);
            let (word, v4, v6) = found(&mut policy);
            assert_eq!(word, expected, "{line}: {v4:?}, {v6:?}: {:?}", policy.summary());
            let (again, ..) = found(&mut HostPolicy::new().unwrap());
            assert_eq!(again, expected, "{line}: a new process");
        });
    }
}

#[test]
fn ipsec_policies() {
    let template = "tmpl proto esp mode transport";
    let pair = format!("src 10.91.0.1 dst 192.0.2.7 dir out {template}");
    each(&[
        ("4", &format!("ip xfrm policy add {pair}")),
        ("4", "ip xfrm policy add src 0.0.0.0/0 dst 192.0.2.0/24 dir out action block"),
        ("6", &format!("ip xfrm policy add src ::/0 dst 2001:db8::/64 dir out {template}")),
        (
            "4",
            &format!("ip xfrm policy add src 0.0.0.0/0 dst 192.0.2.0/24 proto udp dport 4000 dir out {template}"),
        ),
        (
            "=",
            &format!("ip xfrm policy add src 0.0.0.0/0 dst 192.0.2.0/24 proto udp dport 5060 dir out {template}"),
        ),
        (
            "=",
            &format!("ip xfrm policy add src 0.0.0.0/0 dst 192.0.2.0/24 proto tcp dir out {template}"),
        ),
        (
            "=",
            &format!("ip xfrm policy add src 0.0.0.0/0 dst 198.51.100.0/24 dir out {template}"),
        ),
        (
            "=",
            &format!("ip xfrm policy add src 0.0.0.0/0 dst 192.0.2.0/24 dir fwd {template}"),
        ),
        ("4", &format!("ip xfrm policy add src 198.51.100.3 dst 10.91.0.1 dir in {template}")),
        (
            "=",
            &format!("ip xfrm policy add {pair} priority 100; ip xfrm policy add src 0.0.0.0/0 dst 192.0.2.0/24 dir out priority 10"),
        ),
        (
            "4",
            &format!("ip xfrm policy add {pair} priority 10; ip xfrm policy add src 0.0.0.0/0 dst 192.0.2.0/24 dir out priority 100"),
        ),
        ("46", "ip xfrm policy setdefault out block"),
    ]);
}

#[test]
fn routing_rules() {
    each(&[
        ("4", "ip rule add ipproto udp dport 4000 lookup 101"),
        ("6", "ip -6 rule add ipproto udp sport 30000-40000 lookup 101"),
        ("4", "ip rule add sport 35000 lookup 101"),
        ("=", "ip rule add ipproto udp dport 5060 lookup 101"),
        ("=", "ip rule add ipproto tcp lookup 101"),
        ("=", "ip rule add ipproto udp dport 4000 lookup 100"),
        ("4", "ip rule add tos 0x10 lookup 101"),
        ("4", "ip rule add uidrange 100-200 lookup 101"),
        ("=", "ip rule add uidrange 100-200 lookup 100"),
        ("=", "ip rule add fwmark 7 lookup 101"),
        ("=", "ip rule add not fwmark 7 lookup 101"),
        (
            "4",
            "ip rule add fwmark 7 lookup 101; iptables -t mangle -A OUTPUT -p udp -j MARK --set-mark 7",
        ),
        (
            "4",
            "ip rule add fwmark 7 lookup 101; iptables -t mangle -A OUTPUT -m owner --uid-owner 0 -j MARK --set-mark 7",
        ),
        (
            "=",
            "ip rule add fwmark 7 lookup 101; iptables -t mangle -A OUTPUT -p tcp -j MARK --set-mark 7",
        ),
        (
            "=",
            "ip rule add fwmark 7 lookup 101; iptables -t mangle -A OUTPUT -p udp --dport 5060 -j MARK --set-mark 7",
        ),
        (
            "4",
            "ip rule add fwmark 7 lookup 101; nft 'add table inet t; add chain inet t o { type route hook output priority 0; }; add rule inet t o udp dport 4000 meta mark set 7'",
        ),
        (
            "6",
            "ip -6 rule add fwmark 7 lookup 101; ip6tables -t mangle -A OUTPUT -d 2001:db8::/32 -j MARK --set-mark 7",
        ),
        ("=", "ip rule add from 10.92.0.1 lookup 101"),
        ("=", "ip rule add ipproto udp lookup 101"),
    ]);
}

/// Docker's rules, as `iptables-save` shows them on a host with one published UDP port.
const DOCKER: &str = "ip link add docker0 type bridge; ip address add 172.17.0.1/16 dev docker0;
iptables -t nat -N DOCKER; iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER;
iptables -t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER;
iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE;
iptables -t nat -A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p udp -m udp --dport 5060 -j MASQUERADE;
iptables -t nat -A DOCKER -i docker0 -j RETURN; iptables -t nat -A DOCKER ! -i docker0 -p udp -m udp --dport 4000 -j DNAT --to-destination 172.17.0.2:5060;
iptables -P FORWARD DROP; iptables -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";

const FIREWALL: &str = "nft 'add table inet filter; add chain inet filter output { type filter hook output priority 0; policy drop; };
add rule inet filter output oifname lo accept; add rule inet filter output ct state established,related accept;
add rule inet filter output meta skuid 0 accept; add rule inet filter output ip daddr { 10.0.0.0/8, 192.168.0.0/16 } reject'";

#[test]
fn netfilter_rules() {
    each(&[
        ("4", "iptables -t nat -A POSTROUTING -o up0 -j MASQUERADE"),
        ("=", "iptables -t nat -A POSTROUTING -o up1 -j MASQUERADE"),
        ("4", "iptables -t nat -A POSTROUTING -p udp -j SNAT --to-source 10.91.0.9"),
        ("=", "iptables -t nat -A POSTROUTING -p tcp -j SNAT --to-source 10.91.0.9"),
        ("4", "iptables -t nat -A OUTPUT -d 192.0.2.7 -p udp -j DNAT --to-destination 192.0.2.8"),
        ("6", "ip6tables -t nat -A POSTROUTING -o up0 -j MASQUERADE"),
        ("=", "iptables -t nat -A POSTROUTING -d 192.0.2.0/24 -j ACCEPT; iptables -t nat -A POSTROUTING -j MASQUERADE"),
        ("46", "nft 'add table inet n; add chain inet n p { type nat hook postrouting priority 100; }; add rule inet n p masquerade'"),
        ("4", "nft 'add table ip n; add chain ip n p { type nat hook postrouting priority 100; }; add chain ip n q; add rule ip n q masquerade; add rule ip n p oifname \"up*\" jump q'"),
        ("4", "nft 'add table ip n; add chain ip n p { type nat hook postrouting priority 100; }; add chain ip n q; add rule ip n q masquerade; add rule ip n p oifname vmap { \"up0\" : jump q }'"),
        ("4", "nft 'add table ip n; add chain ip n p { type nat hook postrouting priority 100; }; add rule ip n p ip daddr != { 10.0.0.0/8 } masquerade'"),
        ("=", "nft 'add table ip n; add chain ip n p { type nat hook postrouting priority 100; }; add rule ip n p ip saddr != 10.91.0.0/24 masquerade'"),
        ("=", "nft 'add table ip n; add chain ip n p { type nat hook prerouting priority 0; }; add rule ip n p udp dport 4000 redirect to 5'"),
        ("4", "iptables -t mangle -A POSTROUTING -p udp --sport 30000:40000 -j DSCP --set-dscp 46"),
        ("46", "nft 'add table inet m; add chain inet m p { type filter hook postrouting priority 0; }; add rule inet m p udp sport 30000-40000 ip dscp set ef; add rule inet m p udp sport 30000-40000 ip6 dscp set ef'"),
        ("4", "iptables -A OUTPUT -d 192.0.2.7 -j DROP"),
        ("4", "iptables -A OUTPUT -p udp -j REJECT"),
        ("=", "iptables -A OUTPUT -p udp --dport 4000 -j ACCEPT; iptables -A OUTPUT -j DROP"),
        ("4", "iptables -P OUTPUT DROP"),
        ("=", DOCKER),
        ("=", FIREWALL),
        (
            "=",
            "iptables -t nat -N KUBE; iptables -t nat -A POSTROUTING -j KUBE; iptables -t nat -A KUBE -m mark ! --mark 0x4000/0x4000 -j RETURN;
             iptables -t nat -A KUBE -j MARK --xor-mark 0x4000; iptables -t nat -A KUBE -j MASQUERADE --random-fully",
        ),
    ]);
}

#[test]
fn what_is_taken_back_is_forgotten() {
    on_host(|host| {
        let mut policy = HostPolicy::new().unwrap();
        for (set, unset) in [
            (
                "ip xfrm policy add src 0.0.0.0/0 dst 192.0.2.0/24 dir out action block",
                "ip xfrm policy flush",
            ),
            (
                "ip rule add dport 4000 ipproto udp lookup 101",
                "ip rule del dport 4000 ipproto udp lookup 101",
            ),
            ("iptables -t nat -A POSTROUTING -j MASQUERADE", "iptables -t nat -F POSTROUTING"),
        ] {
            host.run(set);
            assert!(policy.follow(), "{set} is news");
            assert!(Host::denies(&mut policy, RELAY, PHONE).is_some(), "{set}");
            assert!(!policy.summary().is_empty(), "{set}");
            host.run(unset);
            assert!(policy.follow(), "{unset} is news");
            assert_eq!(Host::denies(&mut policy, RELAY, PHONE), None, "{unset}");
        }
        assert!(!policy.follow(), "nothing has changed");
    });
}

/// The route that a rule leads to may change without the rule.
#[test]
fn a_route_of_a_rules_table_counts() {
    on_host(|host| {
        let mut policy = HostPolicy::new().unwrap();
        host.run("ip rule add ipproto udp dport 4000 lookup 102");
        assert_eq!(Host::denies(&mut policy, RELAY, PHONE), None, "table 102 is empty");
        host.run("ip route add 192.0.2.0/24 via 10.92.0.2 table 102");
        assert!(policy.follow(), "a route is news");
        assert!(Host::denies(&mut policy, RELAY, PHONE).is_some());
    });
}
