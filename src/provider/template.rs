//! What a signature covers, written as a template such as `{timestamp}.{body}`.

use crate::domain::Refusal;

use super::{Headers, SettingError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Literal(String),
    Body,
    Timestamp,
    Id,
    Url,
    Header(String),
}

/// A template that was read.
#[derive(Debug, Clone)]
pub(crate) struct Template(Vec<Part>);

/// What the parts stand for in one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Values<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) timestamp: Option<&'a [u8]>,
    pub(crate) id: Option<&'a [u8]>,
    pub(crate) url: Option<&'a str>,
    pub(crate) headers: &'a Headers,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    ///
    /// [`SettingError`] for an unknown name in braces or a brace without its partner.
    pub(crate) fn parse(text: &str) -> Result<Self, SettingError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, behind)) = rest.split_once('{') {
            push_literal(&mut parts, literal)?;
            let Some((name, behind)) = behind.split_once('}') else {
                return Err(SettingError(format!("{text:?} has a {{ without its }}")));
            };
            parts.push(match name {
                "body" => Part::Body,
                "timestamp" => Part::Timestamp,
                "id" => Part::Id,
                "url" => Part::Url,
                _ => match name.strip_prefix("header:") {
                    Some(header) if super::headers::is_name(header) => {
                        Part::Header(header.to_owned())
                    }
                    _ => {
                        return Err(SettingError(format!(
                            "{{{name}}} is none of {{body}}, {{timestamp}}, {{id}}, {{url}}, {{header:NAME}}"
                        )));
                    }
                },
            });
            rest = behind;
        }
        push_literal(&mut parts, rest)?;
        Ok(Self(parts))
    }

    pub(crate) fn uses(&self, part: &Part) -> bool {
        self.0.contains(part)
    }

    /// The value, if it can be cut out of the signed text in one way only.
    fn apart<'a>(&self, index: usize, value: Option<&'a [u8]>) -> Result<&'a [u8], Refusal> {
        let value = value.ok_or(Refusal::MissingSignature)?;
        let literal = |index: Option<usize>| match self.0.get(index?) {
            Some(Part::Literal(text)) => Some(text.as_bytes()),
            _ => None,
        };
        // A text at the very beginning or end sets nothing apart.
        let before = literal(index.checked_sub(1).filter(|before| *before > 0));
        let behind = literal(Some(index + 1).filter(|behind| behind + 1 < self.0.len()));
        let earlier = behind.is_some_and(|text| {
            let mut starts = 0..value.len();
            starts.any(|at| begins(value.iter().chain(text).skip(at), text))
        });
        let later = before.is_some_and(|text| {
            let mut starts = 1..=value.len();
            starts.any(|at| begins(text.iter().chain(value).skip(at), text))
        });
        if earlier || later {
            return Err(Refusal::MalformedSignature);
        }
        Ok(value)
    }

    /// Names of the headers it takes values from.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Header(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Whether the id, and each of these headers, is set apart from what else the sender may
    /// choose: by a text in between, by the time (which only fits in one place) or by an end.
    pub(crate) fn sets_apart(&self, headers: &[&str]) -> bool {
        let open = |index: Option<usize>| {
            matches!(
                index.and_then(|index| self.0.get(index)),
                Some(Part::Body | Part::Id | Part::Header(_))
            )
        };
        self.0.iter().enumerate().all(|(index, part)| {
            let names = match part {
                Part::Id => true,
                Part::Header(name) => headers.iter().any(|h| h.eq_ignore_ascii_case(name)),
                _ => false,
            };
            !names || !(open(index.checked_sub(1)) || open(Some(index + 1)))
        })
    }

    /// The signed bytes, as parts that follow one another.
    ///
    /// # Errors
    ///
    /// [`Refusal::MissingSignature`] when a value is absent, [`Refusal::MalformedSignature`] when
    /// a header is repeated, or when the id or a header holds the text that sets it apart: `a.1` +
    /// `2` and `a` + `1.2` would be signed alike.
    pub(crate) fn fill<'a>(&'a self, values: &Values<'a>) -> Result<Vec<&'a [u8]>, Refusal> {
        let mut filled = Vec::with_capacity(self.0.len());
        for (index, part) in self.0.iter().enumerate() {
            filled.push(match part {
                Part::Literal(text) => text.as_bytes(),
                Part::Body => values.body,
                Part::Timestamp => values.timestamp.ok_or(Refusal::MissingSignature)?,
                Part::Url => values
                    .url
                    .map(str::as_bytes)
                    .ok_or(Refusal::MissingSignature)?,
                Part::Header(name) => self.apart(index, values.headers.only(name)?)?,
                Part::Id => self.apart(index, values.id)?,
            });
        }
        Ok(filled)
    }
}

/// Whether the bytes begin with the text; there are at least as many.
fn begins<'a>(mut bytes: impl Iterator<Item = &'a u8>, text: &[u8]) -> bool {
    text.iter().all(|byte| bytes.next() == Some(byte))
}

fn push_literal(parts: &mut Vec<Part>, text: &str) -> Result<(), SettingError> {
    if text.contains('}') {
        return Err(SettingError("a } has no { before it".to_owned()));
    }
    if !text.is_empty() {
        parts.push(Part::Literal(text.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_filled() {
        let template = Template::parse("v0:{timestamp}|{id}|{url}|{header:X-A}\n{body}").unwrap();
        let headers: Headers = [("x-a", "A")].into_iter().collect();
        let values = Values {
            body: b"B",
            timestamp: Some(b"1"),
            id: Some(b"i"),
            url: Some("https://x.test/"),
            headers: &headers,
        };
        let filled = template.fill(&values).unwrap().concat();
        assert_eq!(filled, b"v0:1|i|https://x.test/|A\nB");
        assert_eq!(template.headers().collect::<Vec<_>>(), ["X-A"]);
        assert!(template.uses(&Part::Url) && !template.uses(&Part::Literal("x".into())));
        for absent in [
            Values {
                timestamp: None,
                ..values
            },
            Values { id: None, ..values },
            Values {
                url: None,
                ..values
            },
            Values {
                headers: &Headers::default(),
                ..values
            },
        ] {
            assert_eq!(template.fill(&absent), Err(Refusal::MissingSignature));
        }
        let twice: Headers = [("x-a", "A"), ("X-A", "A")].into_iter().collect();
        let values = Values {
            headers: &twice,
            ..values
        };
        assert_eq!(template.fill(&values), Err(Refusal::MalformedSignature));
    }

    #[test]
    fn faulty_templates_are_refused() {
        for bad in [
            "{body",
            "body}",
            "{Body}",
            "{header:}",
            "{header:a b}",
            "{}",
            "{secret}{body}",
        ] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
