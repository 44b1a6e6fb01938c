//! JSON read without rounding, cutting or recursion.
//!
//! [`Document::parse`] checks a text once against RFC 8259 and keeps one flat list of nodes with
//! their places in the text. Nothing is converted: a number stays the characters it was written
//! with, a string is decoded only when asked for. Neither reading nor walking recurses, so no
//! depth of nesting can end the process, and errors never quote their input.
//!
//! Used by the providers (ids, types, entities) and by [`super::fingerprint`] (canonical form).

mod canonical;
mod parse;
mod pointer;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

pub use pointer::Found;

/// Deepest nesting of arrays and objects that is read.
pub const DEPTH_MAX: usize = 128;

/// Why a text is not read. Holds no part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// A byte sequence is no UTF-8.
    #[error("not UTF-8 at byte {0}")]
    Utf8(usize),
    /// RFC 8259 does not allow this byte here, or the text ends too early.
    #[error("not JSON at byte {0}")]
    Syntax(usize),
    /// More than [`DEPTH_MAX`] arrays and objects inside each other.
    #[error("nested deeper than {DEPTH_MAX}")]
    TooDeep,
    /// Longer than 4 GiB.
    #[error("too long")]
    TooLong,
}

impl JsonError {
    /// The reason as a constant sentence, for an unreadable event.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Utf8(_) => "the body is not UTF-8",
            Self::Syntax(_) => "the body is not JSON",
            Self::TooDeep => "the body is nested deeper than 128",
            Self::TooLong => "the body is too long to be read",
        }
    }
}

/// Whether a text is a JSON Pointer (RFC 6901).
pub fn valid_pointer(text: &str) -> bool {
    pointer::valid(text)
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number, kept as text.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

/// One value (or member name) in the flat list. The nodes of an array or object stand right
/// behind it; an object's alternate between name and value.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// First byte in the text.
    start: u32,
    /// Byte behind the last one.
    end: u32,
    /// Index of the first node that is not inside this one.
    next: u32,
    kind: Kind,
    /// A string with at least one escape.
    escaped: bool,
}

/// A JSON text that was read once: it can be asked by pointer and written canonically.
///
/// # Examples
///
/// ```
/// use oncehook::domain::json::Document;
///
/// let document = Document::parse(br#"{"id": 9007199254740993, "data": {"name": "caf\u00e9"}}"#)?;
/// let id = document.pointer("/id").and_then(|v| v.number());
/// assert_eq!(id, Some("9007199254740993"));
/// let name = document.pointer("/data/name").and_then(|v| v.string());
/// assert_eq!(name.as_deref(), Some("café"));
/// # Ok::<(), oncehook::domain::json::JsonError>(())
/// ```
pub struct Document<'a> {
    text: &'a str,
    nodes: Vec<Node>,
}

impl<'a> Document<'a> {
    /// Reads one JSON text; white space around it is allowed, anything else is not.
    ///
    /// Names that occur twice in an object are read as they stand: [`Document::pointer`] takes
    /// the last, [`Document::find`] tells.
    ///
    /// # Errors
    ///
    /// [`JsonError`] with the place of the first fault.
    ///
    /// # Source
    ///
    /// RFC 8259. Unpaired surrogate escapes, which its grammar lets through, are refused: no text
    /// can hold them.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, JsonError> {
        let text =
            std::str::from_utf8(bytes).map_err(|error| JsonError::Utf8(error.valid_up_to()))?;
        let nodes = parse::nodes(text)?;
        Ok(Self { text, nodes })
    }

    /// The outermost value.
    pub fn root(&self) -> Value<'_> {
        let whole = Node {
            start: 0,
            end: 0,
            next: 1,
            kind: Kind::Null,
            escaped: false,
        };
        // A parsed document has at least one node.
        self.value(0).unwrap_or(Value {
            document: self,
            at: 0,
            node: whole,
        })
    }

    /// The value at a JSON Pointer (RFC 6901); of members with one name, the last.
    pub fn pointer(&self, pointer: &str) -> Option<Value<'_>> {
        self.root().pointer(pointer)
    }

    /// As [`Document::pointer`], but tells when a name on the way occurs twice.
    pub fn find(&self, pointer: &str) -> Found<'_> {
        self.root().find(pointer)
    }

    /// As [`Value::canonical`], of the whole.
    pub fn canonical(&self, volatile: &[&str]) -> Option<Vec<u8>> {
        self.root().canonical(volatile)
    }

    fn value(&self, at: usize) -> Option<Value<'_>> {
        self.nodes.get(at).map(|node| Value {
            document: self,
            at,
            node: *node,
        })
    }
}

impl fmt::Debug for Document<'_> {
    /// Prints the size only: the text is a payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("bytes", &self.text.len())
            .field("nodes", &self.nodes.len())
            .finish()
    }
}

/// One value inside a [`Document`].
#[derive(Clone, Copy)]
pub struct Value<'d> {
    document: &'d Document<'d>,
    at: usize,
    node: Node,
}

impl<'d> Value<'d> {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.node.kind
    }

    /// Where its bytes lie in the text.
    pub fn span(&self) -> Range<usize> {
        self.node.start as usize..self.node.end as usize
    }

    /// Its characters as written.
    pub fn raw(&self) -> &'d str {
        self.document.text.get(self.span()).unwrap_or_default()
    }

    /// The decoded text of a string.
    pub fn string(&self) -> Option<Cow<'d, str>> {
        if self.node.kind != Kind::String {
            return None;
        }
        let inner = self
            .document
            .text
            .get(self.node.start as usize + 1..(self.node.end as usize).saturating_sub(1))
            .unwrap_or_default();
        if self.node.escaped {
            Some(Cow::Owned(parse::unescape(inner)))
        } else {
            Some(Cow::Borrowed(inner))
        }
    }

    /// The text of a number, exactly as written.
    pub fn number(&self) -> Option<&'d str> {
        (self.node.kind == Kind::Number).then(|| self.raw())
    }

    /// The value of `true` and `false`.
    pub fn bool(&self) -> Option<bool> {
        (self.node.kind == Kind::Bool).then(|| self.raw().starts_with('t'))
    }

    /// The elements of an array, in order; none for anything else.
    pub fn elements(&self) -> impl Iterator<Item = Value<'d>> + use<'d> {
        self.children(Kind::Array)
    }

    /// The members of an object, in order and with repeats; none for anything else.
    pub fn members(&self) -> impl Iterator<Item = (Cow<'d, str>, Value<'d>)> + use<'d> {
        let mut children = self.children(Kind::Object);
        std::iter::from_fn(move || {
            let name = children.next()?;
            Some((name.string().unwrap_or_default(), children.next()?))
        })
    }

    /// As [`Document::pointer`], from this value on.
    pub fn pointer(&self, pointer: &str) -> Option<Value<'d>> {
        match self.find(pointer) {
            Found::One(value) | Found::Repeated(value) => Some(value),
            Found::Missing => None,
        }
    }

    /// As [`Document::find`], from this value on.
    pub fn find(&self, pointer: &str) -> Found<'d> {
        pointer::find(*self, pointer)
    }

    /// The canonical form: members sorted by name, no white space, number text and array order
    /// kept, every string written in one way; members at the `volatile` JSON Pointers (from this
    /// value on) are left out, where `*` as a token stands for any member or index.
    ///
    /// `None` when any object has two members of one name: which of them counts is for nobody to
    /// guess, so only the raw bytes can be compared.
    pub fn canonical(&self, volatile: &[&str]) -> Option<Vec<u8>> {
        canonical::write(*self, volatile)
    }

    /// Whether this or any object inside it has two members of one name.
    pub fn repeats_names(&self) -> bool {
        (self.at..self.node.next as usize)
            .filter_map(|at| self.document.value(at))
            .filter(|value| value.kind() == Kind::Object)
            .any(|object| {
                let mut names: Vec<_> = object.members().map(|(name, _)| name).collect();
                names.sort_unstable();
                names.windows(2).any(|pair| pair.first() == pair.last())
            })
    }

    fn children(&self, of: Kind) -> Children<'d> {
        let inside = self.node.kind == of;
        Children {
            document: self.document,
            at: self.at + 1,
            end: if inside { self.node.next as usize } else { 0 },
        }
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({:?} at {:?})", self.kind(), self.span())
    }
}

/// The nodes directly inside one.
#[derive(Clone)]
struct Children<'d> {
    document: &'d Document<'d>,
    at: usize,
    end: usize,
}

impl<'d> Iterator for Children<'d> {
    type Item = Value<'d>;

    fn next(&mut self) -> Option<Value<'d>> {
        if self.at >= self.end {
            return None;
        }
        let value = self.document.value(self.at)?;
        self.at = value.node.next as usize;
        Some(value)
    }
}
