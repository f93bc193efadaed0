//! Computes the hash under which a Tofino stores a 5-tuple (table property `proxy_hash`).
//!
//! Every hash unit of the chip is a matrix over GF(2): each bit of the result is the exclusive or of some bits of the key and of a seed.
//! The compiler writes the matrix to context.json, which `bf_switchd` sends with the schema. Nothing else tells it: each site has a
//! polynomial of its own.

use serde_json::Value;
use shunt_net::{FiveTuple, octets};
use std::collections::HashMap;

/// The parts of a 5-tuple in the order of the relay tables' keys, as a CRC takes them.
const PARTS: [&str; 4] = ["src_addr", "dst_addr", "src_port", "dst_port"];

/// Error: where a context.json cannot be understood, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("context.json: {0}")]
pub(crate) struct HashError(String);

/// Computes a hash: the seed, exclusive-ored with one column for each set bit of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinearHash {
    pub(crate) bits: u32,
    seed: u64,
    /// One column for each bit of the key, from the first byte's most significant bit on.
    columns: Vec<u64>,
    /// Contribution of each value of each byte.
    tables: Vec<[u64; 256]>,
}

impl LinearHash {
    fn new(bits: u32, seed: u64, columns: Vec<u64>) -> Self {
        let table = |columns: &[u64]| {
            let mut table = [0; 256];
            for (value, sum) in table.iter_mut().enumerate() {
                for (place, column) in columns.iter().enumerate() {
                    if value >> (7 - place) & 1 == 1 {
                        *sum ^= column;
                    }
                }
            }
            table
        };
        let tables = columns.chunks_exact(8).map(table).collect();
        Self {
            bits,
            seed,
            columns,
            tables,
        }
    }

    fn add(&self, value: u64, at: usize, bytes: &[u8]) -> u64 {
        let tables = self.tables.get(at..).unwrap_or(&[]);
        bytes
            .iter()
            .zip(tables)
            .fold(value, |value, (byte, table)| value ^ table[usize::from(*byte)])
    }

    /// Returns the hash of a 5-tuple of the table's IP version.
    pub(crate) fn of(&self, key: &FiveTuple) -> u64 {
        let (src, dst) = (octets(key.src.addr), octets(key.dst.addr));
        let value = self.add(self.seed, 0, &src);
        let value = self.add(value, src.len(), &dst);
        let value = self.add(value, 2 * src.len(), &key.src.port.to_be_bytes());
        self.add(value, 2 * src.len() + 2, &key.dst.port.to_be_bytes())
    }

    /// Returns the matrix's rows in reduced echelon form. Two hashes collide on the same keys exactly when these are equal.
    fn rows(&self) -> Vec<Vec<bool>> {
        let mut rows: Vec<Vec<bool>> = (0..self.bits)
            .map(|bit| self.columns.iter().map(|column| column >> bit & 1 == 1).collect())
            .collect();
        let mut rank = 0;
        for place in 0..self.columns.len() {
            let Some(pivot) = (rank..rows.len()).find(|row| rows[*row][place]) else {
                continue;
            };
            rows.swap(rank, pivot);
            let above = rows[rank].clone();
            for (at, row) in rows.iter_mut().enumerate() {
                if at != rank && row[place] {
                    row.iter_mut().zip(&above).for_each(|(bit, other)| *bit ^= other);
                }
            }
            rank += 1;
        }
        rows.truncate(rank);
        rows
    }

    /// Returns whether it collides on the same keys as another.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        self.columns.len() == other.columns.len() && self.rows() == other.rows()
    }
}

/// Reads the hashes of a compiled pipeline's 5-tuple tables, by table name; a table that stores whole keys has none.
///
/// # Errors
/// The part that cannot be understood.
pub(crate) fn from_context(context: &[u8]) -> Result<HashMap<String, Vec<LinearHash>>, HashError> {
    let document: Value = serde_json::from_slice(context).map_err(|error| HashError(error.to_string()))?;
    let tables = document["tables"]
        .as_array()
        .ok_or_else(|| HashError("there are no tables".into()))?;
    let mut found = HashMap::new();
    for table in tables {
        let Some((name, last, count)) = layout(table) else { continue };
        let mut hashes: Vec<LinearHash> = Vec::new();
        let stages = table["match_attributes"]["stage_tables"].as_array();
        for stage in stages.into_iter().flatten() {
            if stage["stage_table_type"] == "proxy_hash_match" {
                let hash = stage_hash(&name, stage, &last, count)?;
                if !hashes.iter().any(|other| other.is_as(&hash)) {
                    hashes.push(hash);
                }
            }
        }
        found.insert(name, hashes);
    }
    Ok(found)
}

/// Returns a table's name, the column of each field's lowest bit, and the number of columns; `None` if it has no 5-tuple.
fn layout(table: &Value) -> Option<(String, HashMap<String, usize>, usize)> {
    let name = table["name"].as_str()?.to_owned();
    let fields = table["match_key_fields"].as_array()?;
    let (mut last, mut place) = (HashMap::new(), 0);
    for part in PARTS {
        let named = |field: &&Value| field["name"].as_str().and_then(|name| name.rsplit('.').next()) == Some(part);
        let field = fields.iter().find(named)?;
        place += usize::try_from(field["bit_width"].as_u64()?).ok()?;
        last.insert(field["name"].as_str()?.to_owned(), place.checked_sub(1)?);
    }
    (fields.len() == PARTS.len() && place <= 8 * 36).then_some((name, last, place))
}

/// Reads the hash of one stage table. The hash unit has more bits than the key's; those in use keep their order.
fn stage_hash(name: &str, stage: &Value, last: &HashMap<String, usize>, count: usize) -> Result<LinearHash, HashError> {
    let wrong = |what: &str| HashError(format!("{name}: {what}"));
    let bits = stage["proxy_hash_function"]["hash_bits"]
        .as_array()
        .ok_or_else(|| wrong("no hash bits"))?;
    let mut bits: Vec<&Value> = bits.iter().collect();
    bits.sort_by_key(|bit| bit["hash_bit"].as_u64());
    let width = stage["proxy_hash_bit_width"].as_u64().unwrap_or(bits.len() as u64);
    if bits.is_empty() || bits.len() as u64 != width || width > 64 {
        return Err(HashError(format!(
            "{name} has a hash of {width} bits, of which {} are given",
            bits.len()
        )));
    }
    let (mut columns, mut seed) = (vec![0_u64; count], 0_u64);
    for (place, bit) in bits.iter().enumerate() {
        seed |= (bit["seed"].as_u64().unwrap_or(0) & 1) << place;
        for source in bit["bits_to_xor"].as_array().into_iter().flatten() {
            let field = source["field_name"].as_str().unwrap_or("?");
            let lowest = last
                .get(field)
                .ok_or_else(|| wrong(&format!("it hashes {field}, which is not in its key")))?;
            let at = source["field_bit"]
                .as_u64()
                .and_then(|bit| lowest.checked_sub(usize::try_from(bit).ok()?));
            *at.and_then(|at| columns.get_mut(at))
                .ok_or_else(|| wrong(&format!("{field} has no such bit")))? ^= 1 << place;
        }
    }
    Ok(LinearHash::new(width as u32, seed, columns))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shunt_net::Endpoint;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// A CRC as in a P4 program (extern CRCPolynomial), without its highest term.
    #[derive(Clone, Copy, Debug)]
    struct Crc {
        bits: u32,
        width: u32,
        polynomial: u64,
        reflected: bool,
        initial: u64,
        last: u64,
    }

    /// `RELAY_KEY=hash32`: HashAlgorithm_t.CRC32.
    const CRC32: Crc = Crc {
        bits: 32,
        width: 32,
        polynomial: 0x04c1_1db7,
        reflected: true,
        initial: 0xffff_ffff,
        last: 0xffff_ffff,
    };

    /// `RELAY_KEY=hash48`: the low 48 bits of the CRC of 2P + 1, P being config.p4's POLYNOMIAL: bf-p4c takes it in Koopman's notation.
    const CRC63: Crc = Crc {
        bits: 48,
        width: 63,
        polynomial: 0x05e1_c3d7_53d4_6d27,
        reflected: false,
        initial: 0,
        last: 0,
    };

    impl Crc {
        /// Computes the hash of a message bit by bit, by the definition.
        fn of(&self, message: &[u8]) -> u64 {
            let (top, mask) = (1 << (self.width - 1), u64::MAX >> (64 - self.width));
            let mut value = self.initial;
            for byte in message {
                let byte = if self.reflected { byte.reverse_bits() } else { *byte };
                for place in (0..8).rev() {
                    let carry = (value & top != 0) != (byte >> place & 1 == 1);
                    value = (value << 1 & mask) ^ if carry { self.polynomial } else { 0 };
                }
            }
            if self.reflected {
                value = value.reverse_bits() >> (64 - self.width);
            }
            (value ^ self.last) & (u64::MAX >> (64 - self.bits))
        }
    }

    #[test]
    fn crc_32_has_the_check_value_of_its_definition() {
        assert_eq!(CRC32.of(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn what_is_no_context_is_an_error() {
        assert!(from_context(b"{").is_err());
        assert!(from_context(b"{}").is_err());
        assert_eq!(from_context(b"{\"tables\": []}"), Ok(HashMap::new()));
    }

    /// Makes a context.json with one hashed table of these stages.
    fn context(stages: &[Value]) -> Value {
        let fields: Vec<Value> = PARTS
            .iter()
            .zip([32, 32, 16, 16])
            .map(|(name, width)| serde_json::json!({"name": format!("hdr.{name}"), "bit_width": width}))
            .collect();
        serde_json::json!({"tables": [{
            "name": "Ingress.relay", "match_key_fields": fields, "match_attributes": {"stage_tables": stages},
        }]})
    }

    /// Makes a stage whose hash is the exclusive or of some bits of the source address with its lowest ones.
    fn stage(width: usize, shift: u64) -> Value {
        let bits: Vec<Value> = (0..width as u64)
            .map(|bit| {
                let source = |bit: u64| serde_json::json!({"field_name": "hdr.src_addr", "field_bit": bit % 32});
                serde_json::json!({"hash_bit": bit, "seed": 0, "bits_to_xor": [source(bit), source(bit + shift)]})
            })
            .collect();
        serde_json::json!({"stage_table_type": "proxy_hash_match", "proxy_hash_bit_width": width, "proxy_hash_function": {"hash_bits": bits}})
    }

    fn read(document: &Value) -> Result<Vec<u32>, HashError> {
        let found = from_context(document.to_string().as_bytes())?;
        Ok(found["Ingress.relay"].iter().map(|hash| hash.bits).collect())
    }

    #[test]
    fn every_function_of_a_table_is_kept_and_none_twice() {
        let plain = serde_json::json!({"stage_table_type": "hash_match"});
        assert_eq!(
            read(&context(std::slice::from_ref(&plain))),
            Ok(vec![]),
            "it stores its keys as they are"
        );
        assert_eq!(read(&context(&[stage(8, 3), stage(8, 3), plain])), Ok(vec![8]));
        assert_eq!(read(&context(&[stage(8, 3), stage(9, 5)])), Ok(vec![8, 9]));
    }

    #[test]
    fn a_context_that_cannot_be_understood_says_what() {
        let broken = |change: &dyn Fn(&mut Value)| {
            let mut made = stage(8, 3);
            change(&mut made);
            read(&context(&[made])).unwrap_err().to_string()
        };
        let bits = |made: &mut Value| made["proxy_hash_function"]["hash_bits"].as_array_mut().unwrap().split_off(7);
        assert!(broken(&|made| drop(bits(made))).contains("of which 7 are given"));
        assert!(broken(&|made| made["proxy_hash_function"] = Value::Null).contains("no hash bits"));
        let field =
            |made: &mut Value, field: &str, value: Value| made["proxy_hash_function"]["hash_bits"][0]["bits_to_xor"][0][field] = value;
        assert!(broken(&|made| field(made, "field_name", "md.vrf".into())).contains("md.vrf"));
        assert!(broken(&|made| field(made, "field_bit", 32.into())).contains("no such bit"));
    }

    const BUILDS: [(&[u8], Crc); 3] = [
        (include_bytes!("../../../../p4/generated/hash32.tofino1.context.json"), CRC32),
        (include_bytes!("../../../../p4/generated/hash48.tofino1.context.json"), CRC63),
        (include_bytes!("../../../../p4/generated/hash48.tofino2.context.json"), CRC63),
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn the_compilers_matrix_is_the_crc(a: u32, b: u32, c: u128, d: u128, p: u16, q: u16) {
            let v4 = FiveTuple::new(Endpoint::new(Ipv4Addr::from(a), p), Endpoint::new(Ipv4Addr::from(b), q));
            let bytes4 = [&a.to_be_bytes()[..], &b.to_be_bytes(), &p.to_be_bytes(), &q.to_be_bytes()].concat();
            let v6 = FiveTuple::new(Endpoint::new(Ipv6Addr::from(c), p), Endpoint::new(Ipv6Addr::from(d), q));
            let bytes6 = [&c.to_be_bytes()[..], &d.to_be_bytes(), &p.to_be_bytes(), &q.to_be_bytes()].concat();
            for (context, crc) in BUILDS {
                let found = from_context(context).unwrap();
                let [relay, relay6] = [&found["Ingress.relay"][..], &found["Ingress.relay6"]];
                prop_assert_eq!((relay.len(), relay[0].bits, relay[0].of(&v4)), (1, crc.bits, crc.of(&bytes4)));
                prop_assert_eq!((relay6.len(), relay6[0].bits, relay6[0].of(&v6)), (1, crc.bits, crc.of(&bytes6)));
            }
        }
    }
}
