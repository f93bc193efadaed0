//! A classic BPF program that takes packets to one address. The kernel has put a VLAN tag aside before it runs.

use shunt_net::octets;
use std::net::IpAddr;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Bytes before the destination address: Ethernet, and the IP header's.
const AT_V4: usize = 14 + 16;
const AT_V6: usize = 14 + 24;
const WHOLE: u32 = 0xffff;

pub(crate) fn only_to(address: IpAddr) -> Vec<libc::sock_filter> {
    let at = if address.is_ipv6() { AT_V6 } else { AT_V4 };
    let octets = octets(address);
    let words: Vec<u32> = octets
        .chunks_exact(4)
        .map(|word| word.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        .collect();
    let op = |code: u16, jf: usize, k: u32| libc::sock_filter {
        code,
        jt: 0,
        jf: jf as u8,
        k,
    };
    let mut program = Vec::with_capacity(2 * words.len() + 2);
    for (place, word) in words.iter().enumerate() {
        let left = 2 * (words.len() - place - 1);
        program.push(op(LOAD, 0, (at + 4 * place) as u32));
        program.push(op(IF_EQUAL, left + 1, *word));
    }
    program.extend([op(RETURN, 0, WHOLE), op(RETURN, 0, 0)]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel makes of these four operations.
    fn run(program: &[libc::sock_filter], frame: &[u8]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let op = &program[at];
            at += 1;
            match op.code {
                LOAD => {
                    let Some(word) = frame.get(op.k as usize..op.k as usize + 4) else {
                        return 0;
                    };
                    value = word.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
                }
                IF_EQUAL if value == op.k => {}
                IF_EQUAL => at += usize::from(op.jf),
                _ => return op.k,
            }
        }
    }

    #[test]
    fn it_takes_packets_to_the_address_and_no_others() {
        for (address, at) in [("198.51.100.7", AT_V4), ("2001:db8::7", AT_V6)] {
            let address: IpAddr = address.parse().unwrap();
            let program = only_to(address);
            let mut frame = vec![0; 80];
            let octets = octets(address);
            frame[at..at + octets.len()].copy_from_slice(&octets);
            assert_eq!(run(&program, &frame), WHOLE);
            for place in at..at + octets.len() {
                let mut other = frame.clone();
                other[place] ^= 1;
                assert_eq!(run(&program, &other), 0, "byte {place}");
            }
            assert_eq!(run(&program, &frame[..at + 2]), 0);
        }
    }
}
