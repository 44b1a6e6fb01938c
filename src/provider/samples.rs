//! Payloads for the simulator, written by us after the shapes the senders document.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::reading::{EventRules, Field};

/// One payload with `$type`, `$unique`, `$unix` and `$time` where those are put in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) event_type: &'static str,
    pub(crate) payload: &'static str,
}

/// Where a preset's samples come from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Samples {
    /// The sender's own types, most used first.
    Listed(&'static [Sample]),
    /// One payload for every type; these are suggestions.
    AnyType {
        types: &'static [&'static str],
        payload: &'static str,
    },
    /// An object that holds what the event rules look for.
    ByRules { types: &'static [&'static str] },
}

impl Samples {
    pub(crate) fn types(&self) -> Vec<&'static str> {
        match self {
            Self::Listed(samples) => samples.iter().map(|sample| sample.event_type).collect(),
            Self::AnyType { types, .. } | Self::ByRules { types } => types.to_vec(),
        }
    }

    /// A sample of the sender's own types.
    pub(crate) fn listed(&self, event_type: &str, unique: &str, now: Timestamp) -> Option<Vec<u8>> {
        let Self::Listed(samples) = self else {
            return None;
        };
        let sample = samples
            .iter()
            .find(|sample| sample.event_type == event_type)?;
        Some(fill(sample.payload, event_type, unique, now))
    }

    pub(crate) fn payload(
        &self,
        rules: &EventRules,
        event_type: &str,
        unique: &str,
        now: Timestamp,
    ) -> Option<Vec<u8>> {
        match self {
            Self::Listed(_) => self.listed(event_type, unique, now),
            Self::AnyType { payload, .. } => Some(fill(payload, event_type, unique, now)),
            Self::ByRules { .. } => Some(by_rules(rules, event_type, unique, now)),
        }
    }
}

/// Puts the values in. They go into JSON strings, so they are escaped as such.
pub(crate) fn fill(payload: &str, event_type: &str, unique: &str, now: Timestamp) -> Vec<u8> {
    payload
        .replace("$type", &escaped(event_type))
        .replace("$unique", &escaped(unique))
        .replace("$unix", &now.as_second().to_string())
        .replace("$time", &format!("{now:.0}"))
        .trim_end()
        .into()
}

fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or_default()
        .to_owned()
}

fn by_rules(rules: &EventRules, event_type: &str, unique: &str, now: Timestamp) -> Vec<u8> {
    let mut body = Value::Object(Map::new());
    put(&mut body, "/created_at", &format!("{now:.0}"));
    put(&mut body, "/amount", "10.00");
    // Where no rule names an id, the content does.
    put(&mut body, "/reference", &format!("order_{unique}"));
    for field in rules.entity.iter() {
        put_field(&mut body, field, &format!("object_{unique}"));
    }
    if let Some(field) = &rules.event_type {
        put_field(&mut body, field, event_type);
    }
    for (index, field) in rules.id.iter().flat_map(|part| part.iter()).enumerate() {
        let text = if index == 0 {
            format!("evt_{unique}")
        } else {
            format!("part{index}_{unique}")
        };
        put_field(&mut body, field, &text);
    }
    body.to_string().into_bytes()
}

fn put_field(body: &mut Value, field: &Field, text: &str) {
    if let Field::Json(pointer) = field {
        put(body, pointer, text);
    }
}

/// Sets the text at a pointer, making objects on the way. A name made of digits serves an array
/// pointer too, since RFC 6901 finds it in an object as well.
fn put(body: &mut Value, pointer: &str, text: &str) {
    let mut place = body;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(members) = place else {
            return;
        };
        place = members.entry(token).or_insert(Value::Null);
    }
    *place = Value::from(text);
}
