//! The TOML text as a tree whose every value knows its line, with environment overrides laid over.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::environment::Environment;
use super::problem::{Origin, Problems};

/// Prefix of the overriding variables: `ONCEHOOK_DATABASE__URL` stands for `database.url`.
const PREFIX: &str = "ONCEHOOK_";

/// A value and where it was written.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub(super) data: Data,
    pub(super) origin: Origin,
}

/// What a value is.
#[derive(Debug, Clone)]
pub(super) enum Data {
    Text(String),
    Integer(i64),
    /// Floats and dates: no option is a float, and dates are read from their text.
    Other(String),
    Flag(bool),
    List(Vec<Value>),
    Table(Table),
}

impl Data {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Integer(_) => "a whole number",
            Self::Other(_) => "a decimal number or a date",
            Self::Flag(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// Keys to values, in alphabetical order.
pub(super) type Table = BTreeMap<String, Value>;

/// Parses the file; syntax errors go to `problems` and the rest is read as far as it goes.
pub(super) fn parse(text: &str, problems: &Problems) -> Table {
    let lines = Lines::of(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let origin = error
            .span()
            .map_or(Origin::File, |span| Origin::Line(lines.at(span.start)));
        problems.error(&origin, "", format!("not TOML: {}", error.message()));
    }
    lines.table(table.get_ref())
}

/// Lays `ONCEHOOK_<TABLE>__<KEY>` variables over the scalar tables. Unknown names
/// are found by the reader of the table, as it finds unknown keys of the file.
pub(super) fn override_with(root: &mut Table, environment: &Environment) {
    for (variable, text) in environment.starting_with(PREFIX) {
        let Some((table, key)) = variable
            .strip_prefix(PREFIX)
            .and_then(|path| path.split_once("__"))
        else {
            continue;
        };
        let origin = Origin::Variable(variable.to_owned());
        let entry = root
            .entry(table.to_ascii_lowercase())
            .or_insert_with(|| Value {
                data: Data::Table(Table::new()),
                origin: origin.clone(),
            });
        match &mut entry.data {
            Data::Table(keys) => {
                keys.insert(
                    key.to_ascii_lowercase(),
                    Value {
                        data: Data::Text(text.to_owned()),
                        origin,
                    },
                );
            }
            // `[[source]]` and `[[handler]]`: said by the reader, which sees the variable.
            _ => {
                root.insert(
                    variable.to_owned(),
                    Value {
                        data: Data::Text(String::new()),
                        origin,
                    },
                );
            }
        }
    }
}

/// Lays the keys of `root` over those of `defaults`, one level deep; lists of tables
/// (`[[source]]`, `[[handler]]`) have no defaults, and which database to write to is never assumed.
pub(super) fn over_defaults(root: Table, defaults: Table) -> Table {
    let mut merged: Table = defaults
        .into_iter()
        .filter(|(name, value)| name != "database" && matches!(value.data, Data::Table(_)))
        .map(|(name, value)| (name, at_file(value)))
        .collect();
    for (name, value) in root {
        match (merged.get_mut(&name).map(|v| &mut v.data), &value.data) {
            (Some(Data::Table(below)), Data::Table(above)) => {
                below.extend(above.clone());
                if let Some(entry) = merged.get_mut(&name) {
                    entry.origin = value.origin;
                }
            }
            _ => {
                merged.insert(name, value);
            }
        }
    }
    merged
}

/// Lines of the defaults mean nothing to a user.
fn at_file(value: Value) -> Value {
    let data = match value.data {
        Data::Table(table) => {
            Data::Table(table.into_iter().map(|(k, v)| (k, at_file(v))).collect())
        }
        other => other,
    };
    Value {
        data,
        origin: Origin::File,
    }
}

/// Byte offsets at which lines begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(
            std::iter::once(0)
                .chain(text.match_indices('\n').map(|(at, _)| at + 1))
                .collect(),
        )
    }

    fn at(&self, offset: usize) -> usize {
        self.0.partition_point(|start| *start <= offset)
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        table
            .iter()
            .map(|(key, value)| {
                let origin = Origin::Line(self.at(key.span().start));
                let data = self.data(value.get_ref());
                (key.get_ref().to_string(), Value { data, origin })
            })
            .collect()
    }

    fn data(&self, value: &DeValue<'_>) -> Data {
        match value {
            DeValue::String(text) => Data::Text(text.to_string()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map_or_else(|_| Data::Other(number.as_str().to_owned()), Data::Integer),
            DeValue::Float(number) => Data::Other(number.as_str().to_owned()),
            DeValue::Boolean(flag) => Data::Flag(*flag),
            DeValue::Datetime(time) => Data::Other(time.to_string()),
            DeValue::Array(items) => Data::List(
                items
                    .iter()
                    .map(|item| Value {
                        data: self.data(item.get_ref()),
                        origin: Origin::Line(self.at(item.span().start)),
                    })
                    .collect(),
            ),
            DeValue::Table(table) => Data::Table(self.table(table)),
        }
    }
}
