//! JSON Pointer.

use std::borrow::Cow;

use super::{Kind, Value};

/// What a pointer leads to.
#[derive(Debug, Clone, Copy)]
pub enum Found<'d> {
    /// Nothing, or the pointer is none.
    Missing,
    /// Exactly one value.
    One(Value<'d>),
    /// A name on the way occurs twice in its object; this is what the last occurrences lead to.
    Repeated(Value<'d>),
}

/// Follows the pointer from a value.
///
/// # Source
///
/// RFC 6901; the last of several equal names is taken, as PostgreSQL's jsonb does.
pub(super) fn find<'d>(from: Value<'d>, pointer: &str) -> Found<'d> {
    if pointer.is_empty() {
        return Found::One(from);
    }
    let Some(tokens) = pointer.strip_prefix('/') else {
        return Found::Missing;
    };
    let mut value = from;
    let mut repeated = false;
    for token in tokens.split('/') {
        let Some(token) = unescape(token) else {
            return Found::Missing;
        };
        let next = match value.kind() {
            Kind::Object => {
                let mut hits = value.members().filter(|(name, _)| *name == token);
                let first = hits.next();
                let last = hits.last();
                repeated |= last.is_some();
                last.or(first).map(|(_, value)| value)
            }
            Kind::Array => index(&token).and_then(|index| value.elements().nth(index)),
            _ => None,
        };
        match next {
            Some(next) => value = next,
            None => return Found::Missing,
        }
    }
    if repeated {
        Found::Repeated(value)
    } else {
        Found::One(value)
    }
}

/// Whether a text is a JSON Pointer.
pub(super) fn valid(pointer: &str) -> bool {
    pointer.is_empty()
        || pointer
            .strip_prefix('/')
            .is_some_and(|tokens| tokens.split('/').all(|token| unescape(token).is_some()))
}

/// Decodes `~1` and `~0`; `None` for any other use of `~`.
pub(super) fn unescape(token: &str) -> Option<Cow<'_, str>> {
    if !token.contains('~') {
        return Some(Cow::Borrowed(token));
    }
    let mut decoded = String::with_capacity(token.len());
    let mut characters = token.chars();
    while let Some(character) = characters.next() {
        decoded.push(match character {
            '~' => match characters.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            other => other,
        });
    }
    Some(Cow::Owned(decoded))
}

/// Digits without a leading zero.
fn index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let leading = token.len() > 1 && token.starts_with('0');
    (digits && !leading).then(|| token.parse().ok()).flatten()
}
