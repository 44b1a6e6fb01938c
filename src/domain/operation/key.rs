//! The request header `Idempotency-Key`: the name that a client gives to one intent.

use std::fmt;

use super::super::{Digest, EventKey, KeyError};

/// The name that a client gives to one intent of its: 1 to 255 bytes of printable ASCII.
///
/// Nothing is trimmed inside, folded or cut: names that differ in one byte are two intents.
///
/// # Source
///
/// draft-ietf-httpapi-idempotency-key-header-07, section 2.1: an Item of RFC 9651 whose value is a
/// String. Beside that the bare form is read, which most clients send: the same text without quotes
/// is the same name. Parameters are read over.
///
/// # Examples
///
/// ```
/// use oncehook::domain::operation::{IdempotencyKey, KeyFault};
///
/// let quoted = IdempotencyKey::of_fields([&b"\"order-17\""[..]])?;
/// let bare = IdempotencyKey::of_fields([&b"order-17"[..]])?;
/// assert_eq!(quoted, bare);
/// assert_eq!(IdempotencyKey::of_fields([]), Err(KeyFault::Missing));
/// # Ok::<(), KeyFault>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

/// Why a request has no usable key. The text says what to send; it holds no part of what came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFault {
    /// No such field.
    #[error(
        "This operation needs the header Idempotency-Key: a name for the intent, the same in every retry of it and never used for another, for example Idempotency-Key: \"8e03978e-40d5-43e8-bc93-6894a57f9324\"."
    )]
    Missing,
    /// Two fields or more, be they equal.
    #[error("Idempotency-Key was sent more than once. Send one field with one name in it.")]
    Repeated,
    /// Several names in one field.
    #[error(
        "Idempotency-Key holds a list. Send one name; one that holds a comma must stand in quotes."
    )]
    List,
    /// A name of no characters.
    #[error("Idempotency-Key is empty. Send 1 to 255 characters.")]
    Empty,
    /// Longer than [`IdempotencyKey::BYTES_MAX`].
    #[error(
        "Idempotency-Key is longer than 255 characters. Send a shorter name, for example a UUID."
    )]
    TooLong,
    /// A quoted name that does not end, or an escape that is none.
    #[error(
        "Idempotency-Key begins with a quotation mark and is not a string of RFC 9651: it ends with a quotation mark, and inside only \\\" and \\\\ are escapes."
    )]
    Quotes,
    /// A byte that a name cannot hold.
    #[error(
        "Idempotency-Key holds a character that it may not: a name is of printable ASCII, and one with a space, a comma, a semicolon, a quotation mark or a backslash stands in quotes."
    )]
    Character,
    /// What stands behind the name.
    #[error("What stands behind the name in Idempotency-Key is not a parameter of RFC 9651.")]
    Parameters,
}

impl IdempotencyKey {
    /// Longest name, in bytes.
    pub const BYTES_MAX: usize = 255;

    /// Reads the fields of this name that a request has.
    ///
    /// # Errors
    ///
    /// [`KeyFault`]: nothing was reserved, and the request may be mended and sent again.
    pub fn of_fields<'a>(fields: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, KeyFault> {
        let mut fields = fields.into_iter();
        let field = fields.next().ok_or(KeyFault::Missing)?;
        if fields.next().is_some() {
            return Err(KeyFault::Repeated);
        }
        // HTTP lets white space stand around a value and does not count it.
        let field = field.trim_ascii();
        match field.split_first() {
            None => Err(KeyFault::Empty),
            Some((b'"', rest)) => {
                let (name, behind) = quoted(rest)?;
                parameters(behind)?;
                Self::of(&name)
            }
            Some(_) => {
                let end = field.iter().position(|byte| *byte == b';');
                let (name, behind) = field.split_at(end.unwrap_or(field.len()));
                let name = name.trim_ascii_end();
                if name.contains(&b',') {
                    return Err(KeyFault::List);
                }
                let fits = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
                if !name.iter().all(fits) {
                    return Err(KeyFault::Character);
                }
                parameters(behind)?;
                Self::of(&String::from_utf8_lossy(name))
            }
        }
    }

    /// A name as it is, such as one out of a path.
    ///
    /// # Errors
    ///
    /// [`KeyFault`] for a text that no name can be.
    pub fn of(name: &str) -> Result<Self, KeyFault> {
        if name.is_empty() {
            return Err(KeyFault::Empty);
        }
        if name.len() > Self::BYTES_MAX {
            return Err(KeyFault::TooLong);
        }
        if !name.bytes().all(printable) {
            return Err(KeyFault::Character);
        }
        Ok(Self(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of its event: the same name of two clients is two intents.
    ///
    /// # Errors
    ///
    /// [`KeyError`] for a client that cannot be part of a key.
    pub fn event_key(&self, client: &str) -> Result<EventKey, KeyError> {
        EventKey::of_parts([client, self.as_str()])
    }

    /// Client and name of an operation's event key.
    pub fn of_event_key(key: &str) -> Option<(String, String)> {
        let (client, name) = key.split_once(':')?;
        let whole = |part: &str| part.replace("%3A", ":").replace("%25", "%");
        (!name.contains(':')).then(|| (whole(client), whole(name)))
    }
}

/// What stands for an operation's event key in a log: 16 hex digits that do not tell it.
pub fn safe_key(operation: &str, key: &EventKey) -> String {
    let scoped = format!("{operation}\n{key}");
    let mut digest = Digest::of(scoped.as_bytes()).hex();
    digest.truncate(16);
    digest
}

impl fmt::Debug for IdempotencyKey {
    /// The key is the client's; it stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.0.len())
    }
}

fn printable(byte: u8) -> bool {
    (0x20..=0x7e).contains(&byte)
}

/// The text of a string behind its opening mark, and what stands behind its closing one.
fn quoted(bytes: &[u8]) -> Result<(String, &[u8]), KeyFault> {
    let mut text = String::new();
    let mut rest = bytes;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'"' => return Ok((text, rest)),
            b'\\' => {
                let (escaped, behind) = rest.split_first().ok_or(KeyFault::Quotes)?;
                if !matches!(escaped, b'"' | b'\\') {
                    return Err(KeyFault::Quotes);
                }
                text.push(char::from(*escaped));
                rest = behind;
            }
            byte if printable(*byte) => text.push(char::from(*byte)),
            _ => return Err(KeyFault::Character),
        }
    }
    Err(KeyFault::Quotes)
}

/// `*( ";" *SP key [ "=" bare-item ] )`: they say nothing here, but what is no parameter may be the
/// rest of a list or a slip.
fn parameters(mut rest: &[u8]) -> Result<(), KeyFault> {
    loop {
        rest = rest.trim_ascii_start();
        match rest.split_first() {
            None => return Ok(()),
            Some((b',', _)) => return Err(KeyFault::List),
            Some((b';', behind)) => rest = parameter(behind.trim_ascii_start())?,
            Some(_) => return Err(KeyFault::Parameters),
        }
    }
}

/// What stands behind one parameter.
fn parameter(bytes: &[u8]) -> Result<&[u8], KeyFault> {
    let begins = |byte: &u8| byte.is_ascii_lowercase() || *byte == b'*';
    let goes_on = |byte: &u8| begins(byte) || byte.is_ascii_digit() || b"_-.".contains(byte);
    if !bytes.first().is_some_and(begins) {
        return Err(KeyFault::Parameters);
    }
    let behind = skip(bytes, goes_on);
    let Some(value) = behind.strip_prefix(b"=") else {
        return Ok(behind);
    };
    if let Some(string) = value.strip_prefix(b"\"") {
        let (_, behind) = quoted(string).map_err(|_| KeyFault::Parameters)?;
        return Ok(behind);
    }
    // Numbers, tokens, byte sequences, booleans and dates: of these characters, and of one at least.
    let of_item = |byte: &u8| byte.is_ascii_graphic() && !b"\",;\\()".contains(byte);
    let behind = skip(value, of_item);
    if behind.len() == value.len() {
        return Err(KeyFault::Parameters);
    }
    Ok(behind)
}

fn skip(bytes: &[u8], over: impl Fn(&u8) -> bool) -> &[u8] {
    let end = bytes.iter().position(|byte| !over(byte));
    bytes.get(end.unwrap_or(bytes.len())..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(field: &str) -> Result<String, KeyFault> {
        IdempotencyKey::of_fields([field.as_bytes()]).map(|key| key.0)
    }

    #[test]
    fn the_quoted_and_the_bare_form_are_one_name() {
        for (field, name) in [
            (
                "8e03978e-40d5-43e8-bc93-6894a57f9324",
                "8e03978e-40d5-43e8-bc93-6894a57f9324",
            ),
            ("\"order-17\"", "order-17"),
            ("order-17", "order-17"),
            ("  \"order-17\"\t", "order-17"),
            ("order-17 ", "order-17"),
            ("\"a b,c;d\"", "a b,c;d"),
            (r#""say \"hi\" \\""#, r#"say "hi" \"#),
            ("\" \"", " "),
            ("17", "17"),
            ("?1", "?1"),
            ("a:b/c+d==", "a:b/c+d=="),
            ("'quoted'", "'quoted'"),
            ("order-17;v=1", "order-17"),
            (
                "\"order-17\" ; v=1;w;x=\"a,\\\"b\";y=:YQ==:;z=?0",
                "order-17",
            ),
            (&"a".repeat(255), &"a".repeat(255)),
        ] {
            assert_eq!(read(field).as_deref(), Ok(name), "{field}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused_with_its_reason() {
        let long = "a".repeat(256);
        for (field, fault) in [
            ("", KeyFault::Empty),
            (" \t ", KeyFault::Empty),
            ("\"\"", KeyFault::Empty),
            (";v=1", KeyFault::Empty),
            (&long, KeyFault::TooLong),
            (&format!("\"{long}\""), KeyFault::TooLong),
            ("a, b", KeyFault::List),
            ("a,b", KeyFault::List),
            ("\"a\", \"b\"", KeyFault::List),
            ("\"a\";v=1, \"b\"", KeyFault::List),
            ("\"a", KeyFault::Quotes),
            ("\"", KeyFault::Quotes),
            ("\"a\\\"", KeyFault::Quotes),
            ("\"a\\n\"", KeyFault::Quotes),
            ("a b", KeyFault::Character),
            ("a\"b", KeyFault::Character),
            ("a\\b", KeyFault::Character),
            ("\"caf\u{e9}\"", KeyFault::Character),
            ("caf\u{e9}", KeyFault::Character),
            ("\"a\tb\"", KeyFault::Character),
            ("\"a\"b", KeyFault::Parameters),
            ("\"a\" b", KeyFault::Parameters),
            ("\"a\";", KeyFault::Parameters),
            ("\"a\";V=1", KeyFault::Parameters),
            ("\"a\";v=", KeyFault::Parameters),
            ("\"a\";v=\"x", KeyFault::Parameters),
            ("\"a\";v=1 2", KeyFault::Parameters),
        ] {
            assert_eq!(read(field), Err(fault), "{field}");
        }
        let none: [&[u8]; 0] = [];
        assert_eq!(IdempotencyKey::of_fields(none), Err(KeyFault::Missing));
        let twice = [&b"a"[..], b"a"];
        assert_eq!(IdempotencyKey::of_fields(twice), Err(KeyFault::Repeated));
        let bytes = [&b"\xff"[..]];
        assert_eq!(IdempotencyKey::of_fields(bytes), Err(KeyFault::Character));
    }

    #[test]
    fn a_fault_teaches_and_repeats_nothing() {
        let said = IdempotencyKey::of_fields([&b"sk_live_1 2"[..]]).unwrap_err();
        assert!(!said.to_string().contains("sk_live"), "{said}");
        assert!(
            KeyFault::Missing
                .to_string()
                .contains("Idempotency-Key: \"")
        );
        let key = IdempotencyKey::of("sk_live_1").unwrap();
        assert_eq!(format!("{key:?}"), "IdempotencyKey(9 bytes)");
        let event = key.event_key("shop").unwrap();
        let safe = safe_key("pay", &event);
        assert_eq!(safe.len(), 16);
        assert_ne!(safe, safe_key("refund", &event));
        assert_ne!(safe, safe_key("pay", &key.event_key("other").unwrap()));
    }

    /// A name as RFC 9651 writes it.
    fn as_string(name: &str) -> String {
        format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
    }

    proptest! {
        #[test]
        fn every_printable_name_is_read_back_from_its_string(name in "[ -~]{1,255}", parameter in "(; *[a-z*][a-z0-9_.*-]{0,4}(=[a-z0-9]{1,3})?){0,3}") {
            let read = read(&format!("{}{parameter}", as_string(&name)));
            prop_assert_eq!(read.as_deref(), Ok(name.as_str()));
        }

        #[test]
        fn every_bare_name_is_the_same_as_in_quotes(name in "[!#-+\\--:<-\\[\\]-~]{1,255}") {
            let bare = read(&name);
            prop_assert_eq!(&bare, &read(&as_string(&name)));
            prop_assert_eq!(bare.as_deref(), Ok(name.as_str()));
        }

        #[test]
        fn no_field_panics_and_what_is_read_is_a_name(field in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(key) = IdempotencyKey::of_fields([&field[..]]) {
                prop_assert!((1..=255).contains(&key.0.len()) && key.0.bytes().all(printable));
            }
        }

        #[test]
        fn two_clients_or_two_names_are_never_one_key(
            clients in ("[a-z0-9][a-z0-9_-]{0,5}", "[a-z0-9][a-z0-9_-]{0,5}"), names in ("[ -~]{1,6}", "[ -~]{1,6}")
        ) {
            let key = |client: &str, name: &str| IdempotencyKey::of(name).unwrap().event_key(client).unwrap();
            let (one, other) = (key(&clients.0, &names.0), key(&clients.1, &names.1));
            prop_assert_eq!(one == other, clients.0 == clients.1 && names.0 == names.1);
            let back = IdempotencyKey::of_event_key(one.as_str());
            prop_assert_eq!(back, Some((clients.0, names.0)));
        }
    }
}
