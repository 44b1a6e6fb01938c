//! Which of two events about one object is the newer one.

use std::cmp::Ordering;
use std::fmt;

use jiff::Timestamp;

use super::json::{Document, Kind, valid_pointer};

/// How new an event is: a decimal number, comparable with others that were read from the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    number: String,
    is_time: bool,
}

impl Version {
    /// Most digits before and after the point.
    const DIGITS_MAX: (usize, usize) = (40, 20);

    fn of_time(at: Timestamp) -> Self {
        Self {
            number: at.as_microsecond().to_string(),
            is_time: true,
        }
    }

    /// A plain decimal number. One with an exponent is none: a short text could name a number of a
    /// billion digits.
    fn of_number(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
        let plain = |text: &str, most: usize| {
            (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
        };
        let (most_whole, most_part) = Self::DIGITS_MAX;
        (plain(whole, most_whole) && plain(part, most_part)).then(|| Self {
            number: text.to_owned(),
            is_time: false,
        })
    }

    /// Whether it is less than another decimal number, however each is written.
    pub fn is_older_than(&self, other: &str) -> bool {
        compare(&self.number, other) == Ordering::Less
    }

    /// The number as text.
    pub fn as_str(&self) -> &str {
        &self.number
    }

    /// What a number that was read from the same place says, if that is where times are.
    pub fn as_time(&self, number: &str) -> Option<Timestamp> {
        let microseconds = self.is_time.then(|| number.parse().ok())??;
        Timestamp::from_microsecond(microseconds).ok()
    }
}

/// Compares two plain decimal numbers exactly.
fn compare(a: &str, b: &str) -> Ordering {
    /// Sign, and the digits without zeros that say nothing.
    fn parts(text: &str) -> (bool, &str, &str) {
        let (negative, digits) = text
            .strip_prefix('-')
            .map_or((false, text), |digits| (true, digits));
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let (whole, part) = (whole.trim_start_matches('0'), part.trim_end_matches('0'));
        (
            negative && !(whole.is_empty() && part.is_empty()),
            whole,
            part,
        )
    }
    let ((a_negative, a_whole, a_part), (b_negative, b_whole, b_part)) = (parts(a), parts(b));
    let size = a_whole
        .len()
        .cmp(&b_whole.len())
        .then_with(|| a_whole.cmp(b_whole))
        .then_with(|| a_part.cmp(b_part));
    match (a_negative, b_negative) {
        (false, false) => size,
        (true, true) => size.reverse(),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
    }
}

/// Where a handler reads how new an event is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionBy {
    /// When it happened, by the provider's clock.
    OccurredAt,
    /// A number or a time (RFC 3339) in the event's JSON.
    Member(String),
}

/// Why a text names no place to read a version from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no version: write \"occurred_at\", or the place of a number or a time in the event's JSON such as \"json:/data/object/version\""
)]
pub struct VersionError(String);

impl VersionBy {
    /// Reads `occurred_at` or `json:` and a JSON Pointer (RFC 6901).
    ///
    /// # Errors
    ///
    /// [`VersionError`] for anything else.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        match text.strip_prefix("json:") {
            None if text == "occurred_at" => Ok(Self::OccurredAt),
            Some(pointer) if !pointer.is_empty() && valid_pointer(pointer) => {
                Ok(Self::Member(pointer.to_owned()))
            }
            _ => Err(VersionError(text.to_owned())),
        }
    }

    /// Whether the event's bytes are needed.
    pub fn reads_body(&self) -> bool {
        matches!(self, Self::Member(_))
    }

    /// The event's version; `None` when it does not say.
    pub fn version(&self, occurred_at: Option<Timestamp>, body: &[u8]) -> Option<Version> {
        match self {
            Self::OccurredAt => occurred_at.map(Version::of_time),
            Self::Member(pointer) => {
                let document = Document::parse(body).ok()?;
                let value = document.pointer(pointer)?;
                match value.kind() {
                    Kind::Number => Version::of_number(value.raw()),
                    Kind::String => {
                        let text = value.string()?;
                        let time = || text.parse().ok().map(Version::of_time);
                        Version::of_number(&text).or_else(time)
                    }
                    Kind::Null | Kind::Bool | Kind::Array | Kind::Object => None,
                }
            }
        }
    }
}

impl fmt::Display for VersionBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OccurredAt => f.write_str("occurred_at"),
            Self::Member(pointer) => write!(f, "json:{pointer}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn version(body: &str) -> Option<String> {
        let by = VersionBy::parse("json:/v").unwrap();
        let found = by.version(None, body.as_bytes());
        found.map(|version| version.as_str().to_owned())
    }

    #[test]
    fn a_version_is_a_plain_number_or_a_time() {
        for (body, expected) in [
            (r#"{"v":17}"#, Some("17")),
            (r#"{"v":-1.50}"#, Some("-1.50")),
            (
                r#"{"v":"12345678901234567890"}"#,
                Some("12345678901234567890"),
            ),
            (
                r#"{"v":"2026-12-02T10:00:00.5Z"}"#,
                Some("1796205600500000"),
            ),
            (
                r#"{"v":"2026-12-02T11:00:00.5+01:00"}"#,
                Some("1796205600500000"),
            ),
            (r#"{"v":1e9}"#, None),
            (r#"{"v":1e999999999}"#, None),
            (r#"{"v":"v2"}"#, None),
            (r#"{"v":""}"#, None),
            (r#"{"v":true}"#, None),
            (r#"{"v":null}"#, None),
            ("{}", None),
            ("no json", None),
        ] {
            assert_eq!(version(body).as_deref(), expected, "{body}");
        }
        let digits = "9".repeat(41);
        assert_eq!(version(&format!(r#"{{"v":{digits}}}"#)), None);
        let at: Timestamp = "2026-12-02T10:00:00Z".parse().unwrap();
        let by = VersionBy::parse("occurred_at").unwrap();
        assert_eq!(
            by.version(Some(at), b"").unwrap().as_str(),
            "1796205600000000"
        );
        assert_eq!(by.version(None, b"{}"), None);
    }

    #[test]
    fn what_names_no_place_is_refused() {
        for text in ["", "created", "json:", "json:v", "occurred_at "] {
            assert_eq!(VersionBy::parse(text), Err(VersionError(text.to_owned())));
        }
    }

    proptest! {
        // Reference: as whole numbers of millionths.
        #[test]
        fn numbers_compare_by_value(
            a in -3_000_000_i64..3_000_000, b in -3_000_000_i64..3_000_000, zeros in 0_usize..3
        ) {
            let text = |n: i64, zeros: usize| {
                let (sign, n) = (if n < 0 { "-" } else { "" }, n.unsigned_abs());
                format!("{sign}{}{}.{:06}{}", "0".repeat(zeros), n / 1_000_000, n % 1_000_000, "0".repeat(zeros))
            };
            prop_assert_eq!(compare(&text(a, 0), &text(b, zeros)), a.cmp(&b));
            let whole = (a / 1_000_000).to_string();
            prop_assert_eq!(compare(&whole, &text(a / 1_000_000 * 1_000_000, zeros)), Ordering::Equal);
        }

        #[test]
        fn what_is_written_reads_back(pointer in "(/[a-z]{0,3}){1,4}") {
            for text in ["occurred_at".to_owned(), format!("json:{pointer}")] {
                prop_assert_eq!(VersionBy::parse(&text).unwrap().to_string(), text);
            }
        }
    }
}
