//! The canonical form, by which two copies of an event are compared.
//!
//! What is written here must never change: digests of it are stored. Another form is another rule
//! number, beside this one.

use std::borrow::Cow;

use super::{Children, Kind, Value, pointer};

/// Pointers still in play below a value: (which pointer, tokens already matched).
type Active = Vec<(usize, usize)>;

/// One open array or object.
enum Frame<'d> {
    Array {
        rest: Children<'d>,
        index: usize,
    },
    Object {
        rest: std::vec::IntoIter<(Cow<'d, str>, Value<'d>)>,
    },
}

struct Open<'d> {
    frame: Frame<'d>,
    active: Active,
    first: bool,
}

pub(super) fn write(root: Value<'_>, volatile: &[&str]) -> Option<Vec<u8>> {
    let pointers: Vec<Vec<Cow<'_, str>>> = volatile.iter().map(|p| tokens(p)).collect();
    let mut out = Vec::with_capacity(root.span().len());
    let mut stack = Vec::new();
    let all = (0..pointers.len()).map(|index| (index, 0)).collect();
    begin(root, all, &mut out, &mut stack)?;
    while let Some(open) = stack.last_mut() {
        let Some((name, value)) = advance(&mut open.frame, !open.active.is_empty()) else {
            out.push(match open.frame {
                Frame::Array { .. } => b']',
                Frame::Object { .. } => b'}',
            });
            stack.pop();
            continue;
        };
        let Some(active) = descend(&open.active, &pointers, &name) else {
            // Left out, but a doubled name inside still makes the whole incomparable.
            if value.repeats_names() {
                return None;
            }
            continue;
        };
        if !std::mem::take(&mut open.first) {
            out.push(b',');
        }
        if matches!(open.frame, Frame::Object { .. }) {
            string(&name, &mut out);
            out.push(b':');
        }
        begin(value, active, &mut out, &mut stack)?;
    }
    Some(out)
}

/// Writes a scalar, or the opening bracket of a frame that is put on the stack. `None` for an
/// object with two members of one name.
fn begin<'d>(
    value: Value<'d>,
    active: Active,
    out: &mut Vec<u8>,
    stack: &mut Vec<Open<'d>>,
) -> Option<()> {
    let frame = match value.kind() {
        Kind::Array => {
            out.push(b'[');
            Frame::Array {
                rest: value.children(Kind::Array),
                index: 0,
            }
        }
        Kind::Object => {
            out.push(b'{');
            let mut members: Vec<_> = value.members().collect();
            members.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            if members
                .windows(2)
                .any(|pair| matches!(pair, [(one, _), (other, _)] if one == other))
            {
                return None;
            }
            Frame::Object {
                rest: members.into_iter(),
            }
        }
        Kind::String => {
            string(&value.string().unwrap_or_default(), out);
            return Some(());
        }
        Kind::Null | Kind::Bool | Kind::Number => {
            out.extend_from_slice(value.raw().as_bytes());
            return Some(());
        }
    };
    stack.push(Open {
        frame,
        active,
        first: true,
    });
    Some(())
}

/// The next child with its name; the name of an element is its index, written only when a pointer
/// may ask for it.
fn advance<'d>(frame: &mut Frame<'d>, asked: bool) -> Option<(Cow<'d, str>, Value<'d>)> {
    match frame {
        Frame::Object { rest } => rest.next(),
        Frame::Array { rest, index } => {
            let value = rest.next()?;
            let name = if asked {
                Cow::Owned(index.to_string())
            } else {
                Cow::Borrowed("")
            };
            *index += 1;
            Some((name, value))
        }
    }
}

/// The pointers in play below the child `name`; `None` when one of them ends here.
fn descend(active: &Active, pointers: &[Vec<Cow<'_, str>>], name: &str) -> Option<Active> {
    let mut below = Active::new();
    for (pointer, depth) in active {
        let tokens = pointers.get(*pointer)?;
        if tokens.get(*depth).is_some_and(|t| t == "*" || t == name) {
            if depth + 1 == tokens.len() {
                return None;
            }
            below.push((*pointer, depth + 1));
        }
    }
    Some(below)
}

fn tokens(volatile: &str) -> Vec<Cow<'_, str>> {
    volatile
        .strip_prefix('/')
        .map(|tokens| tokens.split('/').filter_map(pointer::unescape).collect())
        .unwrap_or_default()
}

/// Quote, backslash and control characters as `\"`, `\\` and `\u00xx`; all else as it is.
fn string(text: &str, out: &mut Vec<u8>) {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    let digit = |value: u8| HEX.get(usize::from(value & 15)).copied().unwrap_or(b'0');
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[digit(byte >> 4), digit(byte)]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}
