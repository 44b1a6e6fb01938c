//! The reader: one pass over the bytes, an explicit stack of open arrays and objects.

use super::{DEPTH_MAX, JsonError, Kind, Node};

/// What may stand at the current place.
#[derive(Clone, Copy)]
enum Expect {
    Value,
    /// Right behind `[`.
    ValueOrEnd,
    /// Right behind `{`.
    NameOrEnd,
    Name,
    CommaOrEnd,
    /// Behind the outermost value.
    Nothing,
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    /// Indexes of the open arrays and objects with their kind.
    open: Vec<(usize, Kind)>,
}

/// Reads the text into its flat list of nodes.
pub(super) fn nodes(text: &str) -> Result<Vec<Node>, JsonError> {
    if u32::try_from(text.len()).is_err() {
        return Err(JsonError::TooLong);
    }
    let mut parser = Parser {
        bytes: text.as_bytes(),
        at: 0,
        // About one node per 12 bytes in payloads of payment providers.
        nodes: Vec::with_capacity(text.len() / 12 + 4),
        open: Vec::with_capacity(16),
    };
    parser.run()?;
    Ok(parser.nodes)
}

impl Parser<'_> {
    fn run(&mut self) -> Result<(), JsonError> {
        let mut expect = Expect::Value;
        loop {
            self.skip_space();
            let Some(byte) = self.peek() else {
                return match expect {
                    Expect::Nothing => Ok(()),
                    _ => Err(self.fault()),
                };
            };
            expect = self.step(expect, byte)?;
        }
    }

    fn step(&mut self, expect: Expect, byte: u8) -> Result<Expect, JsonError> {
        match (expect, byte) {
            (Expect::Value | Expect::ValueOrEnd, _) if byte != b']' => self.value(byte),
            (Expect::ValueOrEnd | Expect::CommaOrEnd, b']') => self.close(Kind::Array),
            (Expect::NameOrEnd | Expect::Name, b'"') => self.name(),
            (Expect::NameOrEnd | Expect::CommaOrEnd, b'}') => self.close(Kind::Object),
            (Expect::CommaOrEnd, b',') => {
                self.at += 1;
                Ok(match self.open.last() {
                    Some((_, Kind::Object)) => Expect::Name,
                    _ => Expect::Value,
                })
            }
            _ => Err(self.fault()),
        }
    }

    fn value(&mut self, byte: u8) -> Result<Expect, JsonError> {
        match byte {
            b'{' => return self.open(Kind::Object, Expect::NameOrEnd),
            b'[' => return self.open(Kind::Array, Expect::ValueOrEnd),
            b'"' => self.string()?,
            b't' => self.literal(b"true", Kind::Bool)?,
            b'f' => self.literal(b"false", Kind::Bool)?,
            b'n' => self.literal(b"null", Kind::Null)?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return Err(self.fault()),
        }
        Ok(self.after_value())
    }

    fn after_value(&self) -> Expect {
        if self.open.is_empty() {
            Expect::Nothing
        } else {
            Expect::CommaOrEnd
        }
    }

    fn open(&mut self, kind: Kind, expect: Expect) -> Result<Expect, JsonError> {
        if self.open.len() >= DEPTH_MAX {
            return Err(JsonError::TooDeep);
        }
        self.open.push((self.nodes.len(), kind));
        let start = self.at;
        self.at += 1;
        // Its end is not known yet; `close` writes it.
        self.push(start, kind, false);
        Ok(expect)
    }

    fn close(&mut self, kind: Kind) -> Result<Expect, JsonError> {
        match self.open.pop() {
            Some((index, opened)) if opened == kind => {
                self.at += 1;
                let (end, next) = (small(self.at), small(self.nodes.len()));
                if let Some(node) = self.nodes.get_mut(index) {
                    node.end = end;
                    node.next = next;
                }
                Ok(self.after_value())
            }
            _ => Err(self.fault()),
        }
    }

    fn name(&mut self) -> Result<Expect, JsonError> {
        self.string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.fault());
        }
        self.at += 1;
        Ok(Expect::Value)
    }

    fn string(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        let mut escaped = false;
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(0x20..) => self.at += 1,
                _ => return Err(self.fault()),
            }
        }
        self.at += 1;
        self.push(start, Kind::String, escaped);
        Ok(())
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Ok(())
            }
            Some(b'u') => match self.unit()? {
                0xD800..=0xDBFF => {
                    if self.bytes.get(self.at..self.at + 2) != Some(b"\\u") {
                        return Err(self.fault());
                    }
                    self.at += 1;
                    match self.unit()? {
                        0xDC00..=0xDFFF => Ok(()),
                        _ => Err(self.fault()),
                    }
                }
                0xDC00..=0xDFFF => Err(self.fault()),
                _ => Ok(()),
            },
            _ => Err(self.fault()),
        }
    }

    /// Reads `uXXXX`, the current byte being the `u`.
    fn unit(&mut self) -> Result<u16, JsonError> {
        let unit = self
            .bytes
            .get(self.at + 1..self.at + 5)
            .and_then(hex_unit)
            .ok_or_else(|| self.fault())?;
        self.at += 5;
        Ok(unit)
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        self.push(start, Kind::Number, false);
        Ok(())
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.fault());
        }
        Ok(())
    }

    fn literal(&mut self, word: &[u8], kind: Kind) -> Result<(), JsonError> {
        let start = self.at;
        if self.bytes.get(start..start + word.len()) != Some(word) {
            return Err(self.fault());
        }
        self.at += word.len();
        self.push(start, kind, false);
        Ok(())
    }

    fn push(&mut self, start: usize, kind: Kind, escaped: bool) {
        self.nodes.push(Node {
            start: small(start),
            end: small(self.at),
            next: small(self.nodes.len() + 1),
            kind,
            escaped,
        });
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn fault(&self) -> JsonError {
        JsonError::Syntax(self.at)
    }
}

/// The text is at most `u32::MAX` bytes long, and there are never more nodes than bytes.
fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn hex_unit(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0_u16, |unit, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        Some(unit << 4 | u16::try_from(digit).ok()?)
    })
}

/// Decodes the inside of a string that was read before, so every escape in it is whole.
pub(super) fn unescape(inner: &str) -> String {
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((plain, escape)) = rest.split_once('\\') {
        text.push_str(plain);
        let (character, used) = decode(escape.as_bytes());
        text.push(character);
        rest = escape.get(used..).unwrap_or_default();
    }
    text.push_str(rest);
    text
}

/// One escape without its backslash: the character and how many bytes it took.
fn decode(escape: &[u8]) -> (char, usize) {
    let short = match escape.first() {
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => return decode_unit(escape),
        Some(other) => char::from(*other),
        None => char::REPLACEMENT_CHARACTER,
    };
    (short, 1)
}

fn decode_unit(escape: &[u8]) -> (char, usize) {
    let first = escape.get(1..5).and_then(hex_unit).unwrap_or(0xFFFD);
    // `uXXXX\uXXXX` when the first is half of a pair.
    let second = escape.get(7..11).and_then(hex_unit).unwrap_or(0);
    match char::decode_utf16([first, second]).next() {
        Some(Ok(character)) => {
            let used = if character.len_utf16() == 2 { 11 } else { 5 };
            (character, used)
        }
        _ => (char::REPLACEMENT_CHARACTER, 5),
    }
}
