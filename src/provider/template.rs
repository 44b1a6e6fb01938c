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

    /// Names of the headers it takes values from.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Header(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The signed bytes, as parts that follow one another.
    ///
    /// # Errors
    ///
    /// [`Refusal::MissingSignature`] when a value is absent, [`Refusal::MalformedSignature`] when
    /// a header is repeated or the id holds the text that ends it: `a.1` + `2` and `a` + `1.2`
    /// would be signed alike.
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
                Part::Header(name) => values
                    .headers
                    .only(name)?
                    .ok_or(Refusal::MissingSignature)?,
                Part::Id => {
                    let id = values.id.ok_or(Refusal::MissingSignature)?;
                    if let Some(Part::Literal(end)) = self.0.get(index + 1)
                        && id.windows(end.len()).any(|part| part == end.as_bytes())
                    {
                        return Err(Refusal::MalformedSignature);
                    }
                    id
                }
            });
        }
        Ok(filled)
    }
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
