//! Form-encoded bodies, as far as a sender puts its JSON into a field.

/// The decoded value of a field that occurs exactly once; `None` when the body is no such form.
///
/// # Source
///
/// WHATWG URL, `application/x-www-form-urlencoded`, but strict: a `%` without two hex digits is an
/// error, not a character.
pub(crate) fn field(body: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut found = None;
    for pair in body.split(|byte| *byte == b'&') {
        let at = pair.iter().position(|byte| *byte == b'=');
        let (key, value) = match at {
            Some(at) => (pair.get(..at)?, pair.get(at + 1..)?),
            None => (pair, &[][..]),
        };
        if decode(key).as_deref() == Some(name.as_bytes())
            && found.replace(decode(value)?).is_some()
        {
            return None;
        }
    }
    found
}

fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high << 4 | low).ok()?
            }
            other => *other,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_decoded_or_not_found() {
        let cases: [(&[u8], Option<&[u8]>); 8] = [
            (b"payload=%7B%22a%22%3A1%7D", Some(b"{\"a\":1}")),
            (b"x=1&payload=a+b%2B&y", Some(b"a b+")),
            (b"payload", Some(b"")),
            (b"payload=%C3%A9%FF", Some(b"\xc3\xa9\xff")),
            (b"payload=1&payload=2", None),
            (b"payload=%4", None),
            (b"payload=%zz", None),
            (b"{\"payload\":1}", None),
        ];
        for (body, expected) in cases {
            assert_eq!(field(body, "payload").as_deref(), expected);
        }
    }
}
