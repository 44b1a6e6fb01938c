//! Text from outside, made fit for a log line or a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Longest text that is shown, in characters.
const CHARS_MAX: usize = 200;

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
    if text.len() <= CHARS_MAX && !text.chars().any(steers) {
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
        if length > CHARS_MAX {
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
    fn f79_long_texts_are_cut_at_200_characters() {
        assert_eq!(clean(&"a".repeat(200)).chars().count(), 200);
        for text in ["a".repeat(201), "é".repeat(5_000), "\n".repeat(1_000)] {
            let cleaned = clean(&text);
            assert!(cleaned.ends_with('…'));
            assert!(cleaned.chars().count() <= 201);
        }
    }
}
