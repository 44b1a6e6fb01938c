//! Reads one table key by key; what nobody asked for is an unknown key.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;

use super::document::{Data, Table, Value};
use super::problem::{Origin, Problems, nearest};
use super::units;

/// A table on its way to checked values. Every getter says what is wrong itself and returns `None`.
pub(super) struct Section<'a> {
    table: &'a Table,
    pub(super) origin: Origin,
    pub(super) place: String,
    problems: &'a Problems,
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    pub(super) fn new(
        table: &'a Table,
        origin: Origin,
        place: impl Into<String>,
        problems: &'a Problems,
    ) -> Self {
        Self {
            table,
            origin,
            place: place.into(),
            problems,
            known: RefCell::default(),
        }
    }

    /// The value of a key, which is known from now on.
    pub(super) fn value(&self, key: &'static str) -> Option<&'a Value> {
        self.ask(key);
        self.table.get(key)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether a key holds a table.
    pub(super) fn is_table(&self, key: &str) -> bool {
        let value = self.table.get(key);
        value.is_some_and(|value| matches!(value.data, Data::Table(_)))
    }

    pub(super) fn origin_of(&self, key: &str) -> Origin {
        self.table
            .get(key)
            .map_or_else(|| self.origin.clone(), |value| value.origin.clone())
    }

    /// An error at a key (or at the table, when the key is absent).
    pub(super) fn error(&self, key: &str, message: impl Into<String>) {
        self.problems
            .error(&self.origin_of(key), &self.place, message);
    }

    pub(super) fn warning(&self, key: &str, message: impl Into<String>) {
        self.problems
            .warning(&self.origin_of(key), &self.place, message);
    }

    pub(super) fn text(&self, key: &'static str) -> Option<&'a str> {
        let value = self.value(key)?;
        match &value.data {
            Data::Text(text) => Some(text),
            other => self.mismatch(key, "a text in quotes", other),
        }
    }

    /// A text that must be there.
    pub(super) fn required(&self, key: &'static str, help: &str) -> Option<&'a str> {
        if !self.has(key) {
            self.ask(key);
            self.error(key, format!("`{key}` is missing: {help}"));
            return None;
        }
        self.text(key)
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(key)?;
        let found = words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, v)| *v);
        if found.is_none() {
            let list: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
            self.error(
                key,
                format!("`{key}` is {text:?}, but must be {}", list.join(" or ")),
            );
        }
        found
    }

    pub(super) fn duration(&self, key: &'static str) -> Option<Duration> {
        self.parsed(key, units::duration)
    }

    /// A duration above zero.
    pub(super) fn positive(&self, key: &'static str) -> Option<Duration> {
        let duration = self.duration(key)?;
        if duration.is_zero() {
            self.error(key, format!("`{key}` must be longer than zero"));
            return None;
        }
        Some(duration)
    }

    /// A size within a range.
    pub(super) fn size(&self, key: &'static str, range: &RangeInclusive<u64>) -> Option<usize> {
        let bytes = self.parsed(key, units::size)?;
        if !range.contains(&bytes) {
            self.error(
                key,
                format!(
                    "`{key}` is {}, but must lie between {} and {}",
                    units::show_size(bytes),
                    units::show_size(*range.start()),
                    units::show_size(*range.end()),
                ),
            );
            return None;
        }
        usize::try_from(bytes).ok()
    }

    pub(super) fn address(&self, key: &'static str) -> Option<SocketAddr> {
        self.parsed(key, |text| {
            text.parse().map_err(|_| {
                format!(
                    "{text:?} is not an address: write an IP address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\""
                )
            })
        })
    }

    /// A whole number within a range.
    pub(super) fn integer(&self, key: &'static str, range: &RangeInclusive<i64>) -> Option<i64> {
        let value = self.value(key)?;
        let number = match (&value.data, &value.origin) {
            (Data::Integer(number), _) => Some(*number),
            // Variables are texts.
            (Data::Text(text), Origin::Variable(_)) => text.parse().ok(),
            _ => None,
        };
        match number {
            Some(number) if range.contains(&number) => Some(number),
            _ => {
                self.error(
                    key,
                    format!(
                        "`{key}` must be a whole number from {} to {}",
                        range.start(),
                        range.end()
                    ),
                );
                None
            }
        }
    }

    pub(super) fn flag(&self, key: &'static str) -> Option<bool> {
        let value = self.value(key)?;
        match (&value.data, &value.origin) {
            (Data::Flag(flag), _) => Some(*flag),
            (Data::Text(text), Origin::Variable(_)) if text == "true" || text == "false" => {
                Some(text == "true")
            }
            (other, _) => self.mismatch(key, "true or false", other),
        }
    }

    /// A moment: a TOML date-time with offset, or the same in quotes.
    pub(super) fn moment(&self, key: &'static str) -> Option<Timestamp> {
        let value = self.value(key)?;
        let (Data::Text(text) | Data::Other(text)) = &value.data else {
            return self.mismatch(key, "a moment", &value.data);
        };
        let moment = text.parse().ok();
        if moment.is_none() {
            self.error(
                key,
                format!("`{key}` is not a moment: write it with its offset, such as \"2026-12-31T00:00:00Z\""),
            );
        }
        moment
    }

    /// A list of texts with where each was written.
    pub(super) fn texts(&self, key: &'static str) -> Option<Vec<(&'a str, Origin)>> {
        let value = self.value(key)?;
        let Data::List(items) = &value.data else {
            return self.mismatch(key, "a list of texts", &value.data);
        };
        let texts: Vec<_> = items
            .iter()
            .filter_map(|item| match &item.data {
                Data::Text(text) => Some((text.as_str(), item.origin.clone())),
                other => self.mismatch(key, "a list of texts", other),
            })
            .collect();
        Some(texts)
    }

    /// A table below this one; the empty place means: named after the key.
    pub(super) fn below(&self, key: &'static str, place: impl Into<String>) -> Option<Section<'a>> {
        let value = self.value(key)?;
        match &value.data {
            Data::Table(table) => Some(Section::new(
                table,
                value.origin.clone(),
                place,
                self.problems,
            )),
            other => self.mismatch(key, "a table", other),
        }
    }

    /// A list of tables (`[[source]]`, or `secrets = [{ .. }]`).
    pub(super) fn list(&self, key: &'static str, place: &str) -> Vec<Section<'a>> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let Data::List(items) = &value.data else {
            return self
                .mismatch::<Vec<_>>(key, "a list of tables", &value.data)
                .unwrap_or_default();
        };
        items
            .iter()
            .filter_map(|item| match &item.data {
                Data::Table(table) => {
                    // A `[[table]]` header has no key span of its own: its first key is nearest.
                    let origin = table
                        .values()
                        .map(|v| &v.origin)
                        .min_by_key(|origin| match origin {
                            Origin::Line(line) => *line,
                            _ => usize::MAX,
                        })
                        .unwrap_or(&item.origin)
                        .clone();
                    Some(Section::new(table, origin, place, self.problems))
                }
                other => self.mismatch(key, "a list of tables", other),
            })
            .collect()
    }

    /// Marks keys as known, though this kind of table has no use for them, and refuses them.
    pub(super) fn refuse(&self, keys: &[&'static str], why: &str) {
        for key in keys {
            if self.value(key).is_some() {
                self.error(key, format!("`{key}` {why}"));
            }
        }
    }

    /// Everything not asked for until now is unknown.
    pub(super) fn finish(self) {
        let known = self.known.borrow();
        for (key, value) in self.table {
            if known.contains(&key.as_str()) {
                continue;
            }
            let message = if let Some(name) = nearest(key, known.iter().copied()) {
                format!("unknown key `{key}`: did you mean `{name}`?")
            } else {
                let mut names: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
                names.sort_unstable();
                names.dedup();
                format!("unknown key `{key}`; known here: {}", names.join(", "))
            };
            self.problems.error(&value.origin, &self.place, message);
        }
    }

    pub(super) fn problems(&self) -> &'a Problems {
        self.problems
    }

    /// The keys as plain TOML, for readers that bring their own `Deserialize`.
    pub(super) fn plain(&self) -> toml::Table {
        plain(self.table)
    }

    fn ask(&self, key: &'static str) {
        self.known.borrow_mut().push(key);
        self.problems.asked(key);
    }

    pub(super) fn parsed<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.text(key)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(message) => {
                self.error(key, format!("`{key}`: {message}"));
                None
            }
        }
    }

    fn mismatch<T>(&self, key: &str, wanted: &str, found: &Data) -> Option<T> {
        self.error(
            key,
            format!("`{key}` must be {wanted}, not {}", found.kind()),
        );
        None
    }
}

fn plain(table: &Table) -> toml::Table {
    table
        .iter()
        .map(|(key, value)| (key.clone(), plain_value(&value.data)))
        .collect()
}

fn plain_value(data: &Data) -> toml::Value {
    match data {
        Data::Text(text) | Data::Other(text) => toml::Value::String(text.clone()),
        Data::Integer(number) => toml::Value::Integer(*number),
        Data::Flag(flag) => toml::Value::Boolean(*flag),
        Data::List(items) => {
            toml::Value::Array(items.iter().map(|v| plain_value(&v.data)).collect())
        }
        Data::Table(table) => toml::Value::Table(plain(table)),
    }
}
