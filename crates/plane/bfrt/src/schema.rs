//! A target's schema (bfrt.json): tables, keys, actions and fields by id, and by any unique dotted suffix of their names.

use serde::Deserialize;
use std::sync::Arc;

/// The schema cannot be read, or lacks what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(pub String);

/// How a key field matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Exact,
    Ternary,
    Lpm,
    Range,
    Optional,
}

impl Match {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "Exact",
            Self::Ternary => "Ternary",
            Self::Lpm => "LPM",
            Self::Range => "Range",
            Self::Optional => "Optional",
        }
    }
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A bit string or integer of so many bits, on the wire as whole bytes in network order.
    Bits(u32),
    String,
    Bool,
    Float,
    Container,
}

/// A key, action or data field.
#[derive(Clone, Debug)]
pub struct Field {
    pub id: u32,
    pub name: String,
    /// The schema's own word for the type.
    pub type_name: String,
    pub kind: Kind,
    pub matches: Option<Match>,
    pub repeated: bool,
    pub read_only: bool,
    pub choices: Vec<String>,
}

impl Field {
    /// Bytes on the wire; None for what is no byte string.
    #[must_use]
    pub fn size(&self) -> Option<usize> {
        match self.kind {
            Kind::Bits(width) => Some(width.div_ceil(8) as usize),
            _ => None,
        }
    }

    /// Whether a value of the right size fits the field's bits.
    #[must_use]
    pub fn fits(&self, value: &[u8]) -> bool {
        match self.kind {
            Kind::Bits(width) if width % 8 != 0 => value.first().is_none_or(|first| first >> (width % 8) == 0),
            _ => true,
        }
    }
}

/// Things with an id and a name.
pub trait Named {
    fn id(&self) -> u32;
    fn name(&self) -> &str;
}

macro_rules! named {
    ($($type:ty),*) => { $(impl Named for $type {
        fn id(&self) -> u32 { self.id }
        fn name(&self) -> &str { &self.name }
    })* };
}
named!(Field, Action, Table, Learn);

/// Things in the schema's order, found by id, or by their name or any dotted suffix that only one of them has.
///
/// They are few: a search among them takes less time than a hash.
#[derive(Clone, Debug)]
pub struct Names<T> {
    what: String,
    items: Vec<T>,
}

impl<T: Named> Names<T> {
    fn new(what: String, items: Vec<T>) -> Result<Self, SchemaError> {
        for (at, item) in items.iter().enumerate() {
            if items[..at].iter().any(|other| other.id() == item.id()) {
                return Err(SchemaError(format!(
                    "{what}: id {} is given twice, once to {}",
                    item.id(),
                    item.name()
                )));
            }
        }
        Ok(Self { what, items })
    }

    #[must_use]
    pub fn by_id(&self, id: u32) -> Option<&T> {
        self.items.iter().find(|item| item.id() == id)
    }

    /// The one thing with this name; None where there is none, or several fit.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&T> {
        if let Some(exact) = self.items.iter().find(|item| item.name() == name) {
            return Some(exact);
        }
        let suffix = format!(".{name}");
        let mut found = self.items.iter().filter(|item| item.name().ends_with(&suffix));
        match (found.next(), found.next()) {
            (Some(one), None) => Some(one),
            _ => None,
        }
    }

    /// # Errors
    /// When there is none, or several fit.
    pub fn named(&self, name: &str) -> Result<&T, SchemaError> {
        self.find(name)
            .ok_or_else(|| SchemaError(format!("{}: there is no single {name}", self.what)))
    }

    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl<'a, T: Named> IntoIterator for &'a Names<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

/// One action of a table with its parameters.
#[derive(Clone, Debug)]
pub struct Action {
    pub id: u32,
    pub name: String,
    pub fields: Names<Field>,
    pub default_only: bool,
    pub table_only: bool,
}

/// One table. `data` holds the fields that belong to the table and not to an action (idle time, counters).
#[derive(Clone, Debug)]
pub struct Table {
    pub id: u32,
    pub name: String,
    pub table_type: String,
    pub size: usize,
    pub key: Names<Field>,
    pub actions: Names<Action>,
    pub data: Names<Field>,
    pub attributes: Vec<String>,
    pub operations: Vec<String>,
}

/// A learn filter (digest) and its fields.
#[derive(Clone, Debug)]
pub struct Learn {
    pub id: u32,
    pub name: String,
    pub fields: Names<Field>,
}

/// Everything that a target offers under one program.
#[derive(Clone, Debug)]
pub struct Schema {
    pub tables: Vec<Arc<Table>>,
    pub learns: Vec<Arc<Learn>>,
}

impl Schema {
    /// Read a program's bfrt.json and any further documents (the fixed tables).
    ///
    /// # Errors
    /// Names the document and what is wrong in it.
    pub fn parse(documents: &[&str]) -> Result<Self, SchemaError> {
        let (mut tables, mut learns) = (Vec::new(), Vec::new());
        for (number, text) in documents.iter().enumerate() {
            let document: json::Document =
                serde_json::from_str(text).map_err(|error| SchemaError(format!("schema document {number}: {error}")))?;
            for table in document.tables {
                tables.push(Arc::new(table.read()?));
            }
            for learn in document.learn_filters {
                learns.push(Arc::new(learn.read()?));
            }
        }
        Ok(Self { tables, learns })
    }

    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        find_shared(&self.tables, name)
    }

    #[must_use]
    pub fn table_by_id(&self, id: u32) -> Option<&Arc<Table>> {
        self.tables.iter().find(|table| table.id == id)
    }

    #[must_use]
    pub fn learn(&self, name: &str) -> Option<&Arc<Learn>> {
        find_shared(&self.learns, name)
    }
}

fn find_shared<'a, T: Named>(items: &'a [Arc<T>], name: &str) -> Option<&'a Arc<T>> {
    if let Some(exact) = items.iter().find(|item| item.name() == name) {
        return Some(exact);
    }
    let suffix = format!(".{name}");
    let mut found = items.iter().filter(|item| item.name().ends_with(&suffix));
    match (found.next(), found.next()) {
        (Some(one), None) => Some(one),
        _ => None,
    }
}

/// The documents as JSON has them.
mod json {
    use super::{Action, Deserialize, Field, Kind, Learn, Match, Names, SchemaError, Table};

    #[derive(Deserialize)]
    pub struct Document {
        pub tables: Vec<TableText>,
        #[serde(default)]
        pub learn_filters: Vec<LearnText>,
    }

    #[derive(Deserialize)]
    pub struct TableText {
        id: u32,
        name: String,
        table_type: String,
        size: usize,
        key: Vec<FieldText>,
        #[serde(default)]
        action_specs: Vec<ActionText>,
        data: Vec<DataText>,
        #[serde(default)]
        attributes: Vec<String>,
        #[serde(default)]
        supported_operations: Vec<String>,
    }

    #[derive(Deserialize)]
    pub struct LearnText {
        id: u32,
        name: String,
        fields: Vec<FieldText>,
    }

    #[derive(Deserialize)]
    struct ActionText {
        id: u32,
        name: String,
        #[serde(default)]
        action_scope: String,
        #[serde(default)]
        annotations: Vec<Note>,
        #[serde(default)]
        data: Vec<DataText>,
    }

    #[derive(Deserialize)]
    struct Note {
        name: String,
    }

    /// A data field stands alone, or as `singleton` or `oneof` with what they have in common.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum DataText {
        Singleton {
            singleton: FieldText,
            #[serde(default)]
            read_only: bool,
        },
        OneOf {
            oneof: Vec<FieldText>,
            #[serde(default)]
            read_only: bool,
        },
        Bare(FieldText),
    }

    #[derive(Deserialize)]
    struct FieldText {
        id: u32,
        name: String,
        #[serde(default)]
        repeated: bool,
        #[serde(default)]
        read_only: bool,
        match_type: Option<String>,
        r#type: Option<TypeText>,
    }

    #[derive(Deserialize)]
    struct TypeText {
        r#type: String,
        width: Option<u32>,
        #[serde(default)]
        choices: Vec<String>,
    }

    impl FieldText {
        fn read(self, read_only: bool) -> Result<Field, SchemaError> {
            let (type_name, kind, choices) = match self.r#type {
                None => ("container".to_owned(), Kind::Container, Vec::new()),
                Some(TypeText { r#type, width, choices }) => {
                    let kind = match (r#type.as_str(), width) {
                        ("bytes", Some(width)) => Kind::Bits(width),
                        ("string", _) => Kind::String,
                        ("bool", _) => Kind::Bool,
                        ("float", _) => Kind::Float,
                        (name, _) => match name.trim_start_matches(['u', 'i', 'n', 't']).parse() {
                            Ok(width) if name.contains("int") => Kind::Bits(width),
                            _ => return Err(SchemaError(format!("{}: {name} is no type", self.name))),
                        },
                    };
                    (r#type, kind, choices)
                }
            };
            let matches = match self.match_type.as_deref() {
                None => None,
                Some("Exact" | "ATCAM") => Some(Match::Exact),
                Some("Ternary") => Some(Match::Ternary),
                Some("LPM") => Some(Match::Lpm),
                Some("Range") => Some(Match::Range),
                Some("Optional") => Some(Match::Optional),
                Some(other) => return Err(SchemaError(format!("{}: {other} is no way to match", self.name))),
            };
            let read_only = read_only || self.read_only;
            Ok(Field {
                id: self.id,
                name: self.name,
                type_name,
                kind,
                matches,
                repeated: self.repeated,
                read_only,
                choices,
            })
        }
    }

    fn fields(what: &str, items: Vec<FieldText>) -> Result<Names<Field>, SchemaError> {
        Names::new(
            what.to_owned(),
            items.into_iter().map(|item| item.read(false)).collect::<Result<_, _>>()?,
        )
    }

    fn data(what: &str, items: Vec<DataText>) -> Result<Names<Field>, SchemaError> {
        let mut found = Vec::new();
        for item in items {
            match item {
                DataText::Singleton { singleton, read_only } => found.push(singleton.read(read_only)?),
                DataText::OneOf { oneof, read_only } => {
                    for member in oneof {
                        found.push(member.read(read_only)?);
                    }
                }
                DataText::Bare(field) => found.push(field.read(false)?),
            }
        }
        Names::new(what.to_owned(), found)
    }

    impl TableText {
        pub fn read(self) -> Result<Table, SchemaError> {
            let name = self.name;
            let mut actions = Vec::new();
            for action in self.action_specs {
                let noted = |name: &str| action.annotations.iter().any(|note| note.name == name);
                actions.push(Action {
                    id: action.id,
                    default_only: action.action_scope == "DefaultOnly" || noted("@defaultonly"),
                    table_only: action.action_scope == "TableOnly" || noted("@tableonly"),
                    fields: data(&format!("{name} {} parameters", action.name), action.data)?,
                    name: action.name,
                });
            }
            Ok(Table {
                id: self.id,
                key: fields(&format!("{name} key"), self.key)?,
                actions: Names::new(format!("{name} actions"), actions)?,
                data: data(&format!("{name} data"), self.data)?,
                table_type: self.table_type,
                size: self.size,
                attributes: self.attributes,
                operations: self.supported_operations,
                name,
            })
        }
    }

    impl LearnText {
        pub fn read(self) -> Result<Learn, SchemaError> {
            Ok(Learn {
                id: self.id,
                fields: fields(&self.name, self.fields)?,
                name: self.name,
            })
        }
    }
}
