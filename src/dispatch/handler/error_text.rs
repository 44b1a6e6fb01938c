//! Error texts for people, without payload.
//!
//! Parsers and databases quote their input in their messages. What is kept is where it failed
//! and of what kind it was; the message itself only where an author wrote it, with long digit
//! runs and mail addresses masked.

use crate::store::handling::SqlFailure;
use crate::telemetry::clean;

/// The text kept of a `sql` handler's exception.
pub(super) fn of_sql(failure: &SqlFailure) -> String {
    let mut parts = vec![format!("SQLSTATE {}", failure.code)];
    if is_authored(&failure.code) {
        parts.push(mask(&failure.message));
    } else if let Some(class) = class(&failure.code) {
        parts.push(class.to_owned());
    }
    if !failure.object.is_empty() {
        parts.push(failure.object.clone());
    }
    if !failure.line.is_empty() {
        parts.push(failure.line.clone());
    }
    clean(&parts.join(": ")).into_owned()
}

/// The text kept of a function handler's error.
pub(super) fn of_error(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(json) = cause::<serde_json::Error>(error) {
        // Its own text quotes the value it stumbled over.
        return format!(
            "JSON: {:?} error at line {} column {}",
            json.classify(),
            json.line(),
            json.column()
        );
    }
    if let Some(database) = cause::<tokio_postgres::Error>(error) {
        return match SqlFailure::of(database) {
            Some(failure) => of_sql(&failure),
            None => "the database connection failed inside the handler".to_owned(),
        };
    }
    clean(&mask(&error.to_string())).into_owned()
}

/// The error or one of its causes, if it is of this type: errors are wrapped more often than not.
pub(super) fn cause<'e, E: std::error::Error + 'static>(
    error: &'e (dyn std::error::Error + 'static),
) -> Option<&'e E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Whether the message was written by the handler's author: RAISE without a code (P0001), our
/// permanent error, or a code of a class that PostgreSQL does not use.
fn is_authored(code: &str) -> bool {
    code.starts_with("P0001") || class(code).is_none()
}

/// PostgreSQL's own classes, Appendix A of its manual.
fn class(code: &str) -> Option<&'static str> {
    Some(match code.get(..2)? {
        "08" => "connection exception",
        "09" => "triggered action exception",
        "0A" => "feature not supported",
        "20" => "case not found",
        "21" => "cardinality violation",
        "22" => "data exception",
        "23" => "integrity constraint violation",
        "24" | "34" => "invalid cursor",
        "25" => "invalid transaction state",
        "26" => "invalid SQL statement name",
        "28" => "invalid authorization",
        "2B" | "2F" | "38" | "39" | "3B" => "routine exception",
        "2D" => "invalid transaction termination: a handler must not COMMIT or ROLLBACK",
        "3D" | "3F" => "invalid catalog or schema name",
        "40" => "transaction rollback",
        "42" => "syntax error or access rule violation",
        "44" => "WITH CHECK OPTION violation",
        "53" => "insufficient resources",
        "54" => "program limit exceeded",
        "55" => "object not in prerequisite state",
        "57" => "operator intervention",
        "58" | "F0" | "XX" => "system or internal error",
        "P0" => "PL/pgSQL error",
        _ => return None,
    })
}

/// Masks digit runs that could be a card or account number, and mail addresses.
pub(crate) fn mask(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    for word in text.split_inclusive(char::is_whitespace) {
        let (body, space) = word.split_at(word.trim_end().len());
        if body
            .find('@')
            .is_some_and(|at| at > 0 && body.len() > at + 1)
        {
            masked.push_str("[address]");
        } else {
            masked.push_str(body);
        }
        masked.push_str(space);
    }
    mask_digits(&masked)
}

/// Runs of nine or more digits, single spaces or dashes between them included.
fn mask_digits(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut run = String::new();
    let flush = |run: &mut String, out: &mut String| {
        let digits = run.chars().filter(char::is_ascii_digit).count();
        let tail: String = run
            .chars()
            .rev()
            .take_while(|c| !c.is_ascii_digit())
            .collect();
        if digits >= 9 {
            out.push_str("[digits]");
            out.extend(tail.chars().rev());
        } else {
            out.push_str(run);
        }
        run.clear();
    };
    for character in text.chars() {
        let joins = matches!(character, ' ' | '-') && run.ends_with(|c: char| c.is_ascii_digit());
        if character.is_ascii_digit() || joins {
            run.push(character);
        } else {
            flush(&mut run, &mut out);
            out.push(character);
        }
    }
    flush(&mut run, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f78_card_numbers_and_addresses_are_masked() {
        let cases = [
            ("card 4111111111111111 declined", "card [digits] declined"),
            (
                "card 4111 1111 1111 1111 declined",
                "card [digits] declined",
            ),
            ("card 4111-1111-1111-1111, sorry", "card [digits], sorry"),
            (
                "order 12345678 of 2026-12-02",
                "order 12345678 of 2026-12-02",
            ),
            ("mail to jane@example.com now", "mail to [address] now"),
            ("plain", "plain"),
        ];
        for (text, expected) in cases {
            assert_eq!(mask(text), expected);
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("order not read")]
    struct Wrapped(#[source] serde_json::Error);

    #[test]
    fn f78_a_json_error_never_quotes_the_payload_however_wrapped() {
        let json = serde_json::from_str::<u64>("\"Jane Doe\"").unwrap_err();
        assert!(json.to_string().contains("Jane"));
        for text in [
            of_error(&Wrapped(
                serde_json::from_str::<u64>("\"Jane Doe\"").unwrap_err(),
            )),
            of_error(&json),
        ] {
            assert!(!text.contains("Jane"), "{text}");
            assert!(text.contains("line 1"), "{text}");
        }
    }

    #[test]
    fn messages_of_postgresql_itself_are_left_out() {
        let failure = SqlFailure {
            code: "22P02".into(),
            message: "invalid input syntax for type integer: \"4111111111111111\"".into(),
            object: String::new(),
            line: "PL/pgSQL function app.book(oncehook.delivered) line 3".into(),
        };
        assert_eq!(
            of_sql(&failure),
            "SQLSTATE 22P02: data exception: PL/pgSQL function app.book(oncehook.delivered) line 3"
        );
        let authored = SqlFailure {
            code: "P0001".into(),
            message: "order not there yet".into(),
            ..failure
        };
        assert!(of_sql(&authored).contains("order not there yet"));
    }
}
