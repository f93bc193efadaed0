//! An entry of a table as the server sends it, read in place.

use crate::wire::{Fields, Malformed};
use shunt_bfrt::values::number;

/// More fields than any of our tables has.
const MOST: usize = 24;

/// Byte strings by field id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Values<'a> {
    fields: [(u32, &'a [u8]); MOST],
    count: usize,
}

impl<'a> Values<'a> {
    fn new() -> Self {
        Self {
            fields: [(0, &[]); MOST],
            count: 0,
        }
    }

    fn push(&mut self, id: u32, value: &'a [u8]) -> Result<(), Malformed> {
        *self.fields.get_mut(self.count).ok_or(Malformed)? = (id, value);
        self.count += 1;
        Ok(())
    }

    pub(crate) fn get(&self, id: u32) -> Option<&'a [u8]> {
        let given = self.fields.get(..self.count)?;
        given.iter().find(|(field, _)| *field == id).map(|(_, value)| *value)
    }

    /// Returns a field as a number; `None` if it is missing.
    pub(crate) fn number(&self, id: u32) -> Option<u64> {
        self.get(id).map(number)
    }
}

/// One entry: byte strings and texts of its key and data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableRow<'a> {
    pub(crate) table_id: u32,
    pub(crate) key: Values<'a>,
    pub(crate) action_id: u32,
    pub(crate) data: Values<'a>,
}

impl<'a> TableRow<'a> {
    /// Decodes the entry of an `Entity`; `None` for the default entry and for other messages.
    pub(crate) fn decode(entity: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let mut row = Self {
            table_id: 0,
            key: Values::new(),
            action_id: 0,
            data: Values::new(),
        };
        let mut keyed = false;
        for field in Fields(entity) {
            let (1, entry) = field? else { return Ok(None) };
            for field in Fields(entry.as_bytes()) {
                match field? {
                    (1, id) => row.table_id = id.as_number() as u32,
                    (2, key) => {
                        keyed = true;
                        for field in Fields(key.as_bytes()) {
                            read_key(field?.1.as_bytes(), &mut row.key)?;
                        }
                    }
                    (3, data) => read_data(data.as_bytes(), &mut row.action_id, &mut row.data)?,
                    _ => {}
                }
            }
        }
        Ok(keyed.then_some(row))
    }
}

fn read_key<'a>(field: &'a [u8], key: &mut Values<'a>) -> Result<(), Malformed> {
    let (mut id, mut value) = (0, &[][..]);
    for field in Fields(field) {
        match field? {
            (1, number) => id = number.as_number() as u32,
            // The first field of every kind of match is its value.
            (_, kind) => {
                value = Fields(kind.as_bytes())
                    .next()
                    .transpose()?
                    .map_or(&[][..], |(_, value)| value.as_bytes())
            }
        }
    }
    key.push(id, value)
}

fn read_data<'a>(data: &'a [u8], action_id: &mut u32, values: &mut Values<'a>) -> Result<(), Malformed> {
    for field in Fields(data) {
        match field? {
            (1, id) => *action_id = id.as_number() as u32,
            (2, field) => {
                let (mut id, mut given) = (0, None);
                for field in Fields(field.as_bytes()) {
                    match field? {
                        (1, number) => id = number.as_number() as u32,
                        (2 | 4, value) => given = Some(value.as_bytes()),
                        _ => {}
                    }
                }
                if let Some(value) = given {
                    values.push(id, value)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message as _;
    use shunt_bfrt::pb;
    use shunt_bfrt::values::{exact, range, stream, text};

    #[test]
    fn an_entry_is_read_in_place() {
        let entry = pb::TableEntry {
            table_id: 7,
            value: Some(pb::table_entry::Value::Key(pb::TableKey {
                fields: vec![exact(1, [1, 2]), range(2, [3], [4])],
            })),
            data: Some(pb::TableData {
                action_id: 9,
                fields: vec![stream(5, [0, 1, 0]), text(6, "x"), stream(7, []), stream(5, [2])],
            }),
            ..Default::default()
        };
        let entity = pb::Entity {
            entity: Some(pb::entity::Entity::TableEntry(entry)),
        };
        let bytes = entity.encode_to_vec();
        let row = TableRow::decode(&bytes).unwrap().unwrap();
        assert_eq!((row.table_id, row.action_id), (7, 9));
        assert_eq!(
            (row.key.get(1), row.key.get(2), row.key.get(3)),
            (Some(&[1, 2][..]), Some(&[3][..]), None)
        );
        assert_eq!(row.data.number(5), Some(256));
        assert_eq!(row.data.get(6), Some(&b"x"[..]));
    }

    #[test]
    fn a_default_entry_is_none() {
        let entry = pb::TableEntry {
            table_id: 7,
            is_default_entry: true,
            ..Default::default()
        };
        let entity = pb::Entity {
            entity: Some(pb::entity::Entity::TableEntry(entry)),
        };
        assert!(TableRow::decode(&entity.encode_to_vec()).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = TableRow::decode(&bytes);
            let mut values = Values::new();
            let _ = read_data(&bytes, &mut 0, &mut values);
            prop_assert!(values.count <= MOST);
        }
    }
}
