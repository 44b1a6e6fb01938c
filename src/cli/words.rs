//! Small pieces of text that several verbs write.

use jiff::{Timestamp, Unit};
use std::fmt::Write as _;

use crate::config::{Environment, units};
use crate::telemetry;

/// How the program was called, for hints that can be typed as they stand.
pub(super) fn program(environment: &Environment) -> &'static str {
    // Set by `cargo run` for the program it starts.
    if environment.get("CARGO_PKG_NAME") == Some("oncehook") {
        "cargo run --"
    } else {
        "oncehook"
    }
}

/// A word a shell takes as one, quoted if it must be. What could steer the terminal that shows it
/// is written as bytes in the `$'...'` form that bash, zsh and newer shells read.
pub(super) fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.,:=@%+/".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if !word.chars().any(telemetry::steers) {
        return format!("'{}'", word.replace('\'', "'\\''"));
    }
    let mut quoted = String::from("$'");
    for character in word.chars() {
        match character {
            '\'' | '\\' => quoted.extend(['\\', character]),
            other if telemetry::steers(other) => {
                for byte in other.encode_utf8(&mut [0; 4]).bytes() {
                    // Octal has three digits at most, so the next character is not taken in.
                    // Writing to a String cannot fail.
                    write!(quoted, "\\{byte:03o}").unwrap_or_default();
                }
            }
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    quoted
}

/// [`shell`] for an operand: behind `--` where it would be taken for an option.
pub(super) fn operand(word: &str) -> String {
    let dashes = if word.starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", shell(word))
}

/// A moment to the millisecond.
pub(super) fn moment(at: Timestamp) -> String {
    at.round(Unit::Millisecond)
        .map_or_else(|_| at.to_string(), |at| format!("{at:.3}"))
}

/// `1 copy`, `2 copies`.
pub(super) fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Lines of cells, whose columns are as wide as they need to be.
pub(super) fn table<const N: usize>(rows: impl Iterator<Item = [String; N]>) -> Vec<String> {
    let rows: Vec<_> = rows.collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    rows.iter()
        .map(|row| {
            let cells: Vec<_> = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect()
}

/// A moment given by a person: with offset, or an age such as `24h`.
///
/// # Errors
///
/// A sentence that shows both forms.
pub(super) fn since(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    units::duration(text)
        .ok()
        .and_then(|age| Timestamp::now().checked_sub(age).ok())
        .ok_or_else(|| {
            format!("{text:?} is no moment: write \"2026-12-01T00:00:00Z\", or an age such as \"24h\" or \"7d\"")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_only_where_a_shell_would_split_them() {
        assert_eq!(shell("evt_1:account=acct_9"), "evt_1:account=acct_9");
        assert_eq!(shell("a b"), "'a b'");
        assert_eq!(shell("it's"), "'it'\\''s'");
        assert_eq!(shell("$(x)"), "'$(x)'");
        assert_eq!(shell(""), "''");
    }

    #[test]
    fn a_word_in_a_hint_cannot_steer_the_terminal_and_is_no_option() {
        assert_eq!(shell("a\u{1b}[31m'\\"), r"$'a\033[31m\'\\'");
        assert_eq!(shell("\u{202e}x\n1"), r"$'\342\200\256x\0121'");
        assert_eq!(operand("-0.5"), "-- -0.5");
        assert_eq!(operand("evt_1"), "evt_1");
    }

    #[test]
    fn moments_are_given_with_offset_or_as_an_age() {
        assert_eq!(
            since("2026-12-01T01:00:00+01:00").unwrap().to_string(),
            "2026-12-01T00:00:00Z"
        );
        let age = Timestamp::now().duration_since(since("24h").unwrap());
        assert!((age.as_secs() - 86_400).abs() < 5);
        for text in ["", "yesterday", "24", "2026-12-01"] {
            assert!(since(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moments_are_shown_to_the_millisecond() {
        let at: Timestamp = "2026-12-01T00:00:00.1239Z".parse().unwrap();
        assert_eq!(moment(at), "2026-12-01T00:00:00.124Z");
    }
}
