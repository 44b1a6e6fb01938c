//! Lanes: one delivery at a time for one business object.

use std::fmt;

use super::Digest;
use super::json::{Document, Kind, valid_pointer};

/// The lane of a delivery: all deliveries of one handler with the same text run one at a time, in
/// the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(String);

impl Lane {
    /// Longest text that is kept as it is, in bytes; a longer one is named by its digest, since it
    /// has to fit into an index.
    pub const BYTES_MAX: usize = 200;

    /// The lane named by a value; `None` for the empty text, which names nothing.
    pub fn of(value: &str) -> Option<Self> {
        if value.is_empty() {
            return None;
        }
        // PostgreSQL text cannot hold NUL; two values that differ in it stay two lanes.
        let name = if value.len() > Self::BYTES_MAX || value.contains('\0') {
            format!("sha256:{}", Digest::of(value.as_bytes()).hex())
        } else {
            value.to_owned()
        };
        Some(Self(name))
    }

    /// The lane as it is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a handler's lane is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneBy {
    /// The business object that the preset names.
    Entity,
    /// The connected account.
    Account,
    /// A text, number or flag of the event's JSON.
    Member(String),
}

/// Why a text names no place to read a lane from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no lane: write \"entity\", \"account\", or the place in the event's JSON such as \"json:/data/object/id\""
)]
pub struct LaneError(String);

/// What of an event a lane may be read from.
#[derive(Debug, Clone, Copy)]
pub struct LaneSource<'a> {
    /// Its business object.
    pub entity: Option<&'a str>,
    /// Its connected account.
    pub account: Option<&'a str>,
    /// Its bytes.
    pub body: &'a [u8],
}

impl LaneBy {
    /// Reads `entity`, `account` or `json:` and a JSON Pointer (RFC 6901).
    ///
    /// # Errors
    ///
    /// [`LaneError`] for anything else.
    pub fn parse(text: &str) -> Result<Self, LaneError> {
        match text {
            "entity" => Ok(Self::Entity),
            "account" => Ok(Self::Account),
            other => match other.strip_prefix("json:") {
                Some(pointer) if !pointer.is_empty() && valid_pointer(pointer) => {
                    Ok(Self::Member(pointer.to_owned()))
                }
                _ => Err(LaneError(text.to_owned())),
            },
        }
    }

    /// The event's lane; `None` when it does not say: such an event waits for no other.
    pub fn lane(&self, event: LaneSource<'_>) -> Option<Lane> {
        match self {
            Self::Entity => event.entity.and_then(Lane::of),
            Self::Account => event.account.and_then(Lane::of),
            Self::Member(pointer) => {
                let document = Document::parse(event.body).ok()?;
                let value = document.pointer(pointer)?;
                match value.kind() {
                    Kind::String => value.string().and_then(|text| Lane::of(&text)),
                    Kind::Number | Kind::Bool => Lane::of(value.raw()),
                    Kind::Null | Kind::Array | Kind::Object => None,
                }
            }
        }
    }
}

impl fmt::Display for LaneBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entity => f.write_str("entity"),
            Self::Account => f.write_str("account"),
            Self::Member(pointer) => write!(f, "json:{pointer}"),
        }
    }
}

/// What a lane does when its first delivery cannot succeed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDead {
    /// It ends as dead letter; the next one runs.
    #[default]
    Skip,
    /// It waits for a person, and the lane with it.
    Hold,
}

/// What a lane does while the result of its first delivery's call is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUncertain {
    /// It waits until the result is known.
    #[default]
    Wait,
    /// The delivery leaves the lane; the next one runs.
    Skip,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lane_of(by: &str, body: &str) -> Option<String> {
        let by = LaneBy::parse(by).unwrap();
        let event = LaneSource {
            entity: Some("pi_1"),
            account: None,
            body: body.as_bytes(),
        };
        by.lane(event).map(|lane| lane.as_str().to_owned())
    }

    #[test]
    fn a_lane_is_what_the_event_says_at_its_place() {
        let body =
            r#"{"a":{"id":"x/1","n":12345678901234567890.10,"t":true,"z":null,"l":[1]},"":"e"}"#;
        for (by, lane) in [
            ("entity", Some("pi_1")),
            ("account", None),
            ("json:/a/id", Some("x/1")),
            ("json:/a/n", Some("12345678901234567890.10")),
            ("json:/a/t", Some("true")),
            ("json:/a/z", None),
            ("json:/a/l", None),
            ("json:/a/l/0", Some("1")),
            ("json:/a/none", None),
            ("json:/", Some("e")),
        ] {
            assert_eq!(lane_of(by, body).as_deref(), lane, "{by}");
        }
        assert_eq!(lane_of("json:/a", "no json"), None);
        assert_eq!(lane_of("json:/a", r#"{"a":""}"#), None);
    }

    #[test]
    fn what_names_no_place_is_refused() {
        for text in ["", "Entity", "json:", "json:a", "json:/~2", "type"] {
            assert_eq!(LaneBy::parse(text), Err(LaneError(text.to_owned())));
        }
    }

    proptest! {
        // Values are lanes one to one, and each fits into the index.
        #[test]
        fn lanes_are_apart_as_their_values_are(
            a in prop_oneof![".{0,300}", "[\\x00a]{0,4}"], b in prop_oneof![".{0,300}", "[\\x00a]{0,4}"]
        ) {
            prop_assert_eq!(Lane::of(&a) == Lane::of(&b), a == b);
            if let Some(lane) = Lane::of(&a) {
                prop_assert!(lane.as_str().len() <= Lane::BYTES_MAX);
                prop_assert!(!lane.as_str().contains('\0'));
            }
        }

        #[test]
        fn what_is_written_reads_back(pointer in "(/[a-z]{0,3}){1,4}") {
            for text in ["entity".to_owned(), "account".to_owned(), format!("json:{pointer}")] {
                prop_assert_eq!(LaneBy::parse(&text).unwrap().to_string(), text);
            }
        }
    }
}
