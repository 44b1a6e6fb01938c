//! Text from outside, made fit for a log line or a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Longest text that is shown, in characters.
const CHARS_MAX: usize = 200;

/// Longest name of what a handler made that is kept, in characters.
const RESOURCE_CHARS_MAX: usize = 1_000;

/// Escapes what could forge a line or steer a terminal, and cuts at 200 characters.
///
/// Control characters, line and paragraph separators and the marks that turn the direction of
/// text become `\n`, `\u{1b}` and so on; a cut text ends in `…`.
///
/// # Examples
///
/// ```
/// use oncehook::telemetry::clean;
///
/// assert_eq!(clean("evt_1"), "evt_1");
/// assert_eq!(clean("evt_1\n{\"level\":\"error\"}"), "evt_1\\n{\"level\":\"error\"}");
/// ```
pub fn clean(text: &str) -> Cow<'_, str> {
    clean_within(text, CHARS_MAX)
}

/// The same for what a handler, a receiver or a person calls the thing that was made: often the whole body of an
/// answer. PostgreSQL takes no NUL, and an outcome that cannot be written is tried again and again. Digits stay,
/// since most ids are made of them; it is cut at 1,000 characters.
pub(crate) fn clean_resource(text: &str) -> Cow<'_, str> {
    clean_within(text, RESOURCE_CHARS_MAX)
}

fn clean_within(text: &str, chars_max: usize) -> Cow<'_, str> {
    if text.len() <= chars_max && !text.chars().any(steers) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::new();
    let mut length = 0;
    for character in text.chars() {
        let before = cleaned.len();
        match character {
            '\n' => cleaned.push_str("\\n"),
            '\r' => cleaned.push_str("\\r"),
            '\t' => cleaned.push_str("\\t"),
            other if steers(other) => {
                // Writing to a String cannot fail.
                write!(cleaned, "\\u{{{:x}}}", u32::from(other)).unwrap_or_default();
            }
            other => cleaned.push(other),
        }
        length += cleaned.get(before..).unwrap_or_default().chars().count();
        if length > chars_max {
            cleaned.truncate(before);
            cleaned.push('…');
            break;
        }
    }
    Cow::Owned(cleaned)
}

/// Whether a character could forge a line or steer a terminal.
pub(crate) fn steers(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f79_no_text_can_begin_a_line_or_steer_a_terminal() {
        let cases = [
            ("plain", "plain"),
            ("", ""),
            ("Zoë € 漢", "Zoë € 漢"),
            ("a\nb\r\nc\td", "a\\nb\\r\\nc\\td"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\0b", "a\\u{0}b"),
            ("\u{202e}gpj", "\\u{202e}gpj"),
            ("\u{2028}x", "\\u{2028}x"),
            ("\u{85}x", "\\u{85}x"),
        ];
        for (text, expected) in cases {
            assert_eq!(clean(text), expected);
        }
    }

    #[test]
    fn what_was_made_can_be_written_and_keeps_its_digits() {
        let card = "po_4111111111111111";
        assert_eq!(clean_resource(card), card);
        assert_eq!(clean_resource("po\0_1\n"), "po\\u{0}_1\\n");
        assert_eq!(clean_resource(&"é".repeat(1_000)).chars().count(), 1_000);
        assert_eq!(clean_resource(&"é".repeat(90_000)).chars().count(), 1_001);
    }

    #[test]
    fn f79_long_texts_are_cut_at_200_characters() {
        assert_eq!(clean(&"a".repeat(200)).chars().count(), 200);
        for text in ["a".repeat(201), "é".repeat(5_000), "\n".repeat(1_000)] {
            let cleaned = clean(&text);
            assert!(cleaned.ends_with('…'));
            assert!(cleaned.chars().count() <= 201);
        }
    }
}
