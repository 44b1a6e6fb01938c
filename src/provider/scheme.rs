//! The declarative half of verification: where the signature, the time and the id lie, what is
//! signed, how it is written. A preset fills in a [`Scheme`]; this file is the only interpreter.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;

use crate::domain::{Refusal, Secret, SecretText};

use super::key::{self, KeyForm};
use super::mac::{Algorithm, Encoding};
use super::template::{Part, Template, Values};
use super::{Headers, Request, SettingError, Verified};

pub(crate) type Text = Cow<'static, str>;

/// Most signatures of the right version and form that one request may carry; a sender in the
/// middle of a rotation has two.
const CANDIDATES_MAX: usize = 64;

/// How one sender signs.
#[derive(Debug, Clone)]
pub(crate) struct Scheme {
    pub(crate) algorithm: Algorithm,
    /// Header of the signature. Sent twice = refused, whatever the values.
    pub(crate) header: Text,
    pub(crate) layout: Layout,
    pub(crate) encoding: Encoding,
    /// Template of the signed bytes.
    pub(crate) signed: Text,
    pub(crate) stamp: Option<Stamp>,
    /// Window when the source sets none.
    pub(crate) tolerance: Duration,
    /// Header of the id, when the id is signed.
    pub(crate) id_header: Option<Text>,
    pub(crate) key: KeyForm,
}

/// How the signature header is built.
#[derive(Debug, Clone)]
pub(crate) enum Layout {
    /// The whole value is one signature behind a prefix.
    Single { prefix: Text },
    /// Items between separators, each `name<join>value`; those called `version` are signatures,
    /// the others say other things.
    Items {
        separator: u8,
        join: u8,
        version: &'static str,
    },
}

/// The signed time.
#[derive(Debug, Clone)]
pub(crate) struct Stamp {
    pub(crate) from: StampFrom,
    pub(crate) unit: Unit,
}

/// Where the signed time is written.
#[derive(Debug, Clone)]
pub(crate) enum StampFrom {
    Header(Text),
    /// An item of the signature header.
    Item(&'static str),
}

/// Unit of a signed time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
pub enum Unit {
    /// Seconds since 1970.
    #[default]
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds since 1970.
    #[serde(rename = "ms")]
    Milliseconds,
}

impl Unit {
    /// Strict: 1 to 12 ASCII digits (15 for milliseconds), no sign, no blank, no exponent, and no
    /// leading zero: one could be taken from the end of an id that stands before it.
    fn read(self, text: &[u8]) -> Option<i64> {
        let digits_max = match self {
            Self::Seconds => 12,
            Self::Milliseconds => 15,
        };
        let digits = (1..=digits_max).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
        if !digits || (text.len() > 1 && text.starts_with(b"0")) {
            return None;
        }
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    fn now(self, now: Timestamp) -> i64 {
        match self {
            Self::Seconds => now.as_second(),
            Self::Milliseconds => now.as_millisecond(),
        }
    }

    fn of(self, window: Duration) -> i64 {
        let units = match self {
            Self::Seconds => u128::from(window.as_secs()),
            Self::Milliseconds => window.as_millis(),
        };
        i64::try_from(units).unwrap_or(i64::MAX)
    }

    /// Inclusive, and both ways: a stamp far ahead would stay good for ever.
    fn check(self, stamp: i64, window: Duration, now: Timestamp) -> Result<(), Refusal> {
        let age = self.now(now).saturating_sub(stamp);
        let window = self.of(window);
        if age > window {
            Err(Refusal::TimestampTooOld)
        } else if age < -window {
            Err(Refusal::TimestampTooNew)
        } else {
            Ok(())
        }
    }
}

/// A scheme bound to the options of one source.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    pub(crate) scheme: Scheme,
    pub(crate) template: Template,
    pub(crate) window: Duration,
    /// The address the sender knows; the only one that is hashed, never `Host`.
    pub(crate) public_url: Option<String>,
}

impl Check {
    /// Binds a scheme.
    ///
    /// # Errors
    ///
    /// [`SettingError`] when an option is missing that the template needs, or one is given that
    /// could not be kept.
    pub(crate) fn new(
        scheme: Scheme,
        tolerance: Option<Duration>,
        public_url: Option<&str>,
    ) -> Result<Self, SettingError> {
        let template = Template::parse(&scheme.signed)?;
        if tolerance.is_some() && scheme.stamp.is_none() {
            return Err(SettingError(
                "`tolerance` cannot be kept: this sender signs no time".to_owned(),
            ));
        }
        match public_url {
            None if template.uses(&Part::Url) => {
                return Err(SettingError(
                    "`public_url` is required: the signature covers the address the sender calls"
                        .to_owned(),
                ));
            }
            Some(_) if !template.uses(&Part::Url) => {
                return Err(SettingError(
                    "`public_url` is not used: the signature does not cover the address".to_owned(),
                ));
            }
            Some(url) if !is_url(url) => {
                return Err(SettingError(
                    "`public_url` must be the whole address as registered with the sender, for example \"https://hooks.example.com/webhooks/shop\""
                        .to_owned(),
                ));
            }
            _ => {}
        }
        Ok(Self {
            window: tolerance.unwrap_or(scheme.tolerance),
            scheme,
            template,
            public_url: public_url.map(str::to_owned),
        })
    }

    /// Checks a request over its exact bytes. First what is absent, then what is malformed, then
    /// the signature against every living secret, and only then the time.
    pub(crate) fn verify(
        &self,
        request: &Request<'_>,
        secrets: &[Secret],
        now: Timestamp,
    ) -> Result<Verified, Refusal> {
        let scheme = &self.scheme;
        let headers = request.headers;
        let value = headers
            .only(&scheme.header)?
            .ok_or(Refusal::MissingSignature)?;
        let id = match &scheme.id_header {
            Some(name) => Some(headers.only(name)?.ok_or(Refusal::MissingSignature)?),
            None => None,
        };
        let stamp = match &scheme.stamp {
            Some(stamp) => Some((stamp.unit, self.stamp_text(stamp, headers, value)?)),
            None => None,
        };
        let received = self.signatures(value)?;
        let stamp = match stamp {
            Some((unit, text)) => {
                let read = unit.read(text).ok_or(Refusal::MalformedSignature)?;
                Some((unit, text, read))
            }
            None => None,
        };
        let parts = self.template.fill(&Values {
            body: request.body,
            timestamp: stamp.map(|(_, text, _)| text),
            id,
            url: self.public_url.as_deref(),
            headers,
        })?;
        let secret = secrets
            .iter()
            .filter(|secret| secret.alive(now))
            .find(|secret| scheme.algorithm.any_matches(&secret.key, &parts, &received))
            .ok_or(Refusal::BadSignature)?;
        if let Some((unit, _, stamp)) = stamp {
            unit.check(stamp, self.window, now)?;
        }
        Ok(Verified {
            secret_label: secret.label.clone(),
            refused_items: Vec::new(),
            items: Vec::new(),
        })
    }

    /// Signs a payload: the header fields that carry signature, time, id and whatever else the
    /// template covers.
    pub(crate) fn sign(
        &self,
        payload: &[u8],
        id: &str,
        secret: &SecretText,
        now: Timestamp,
    ) -> Result<Vec<(String, String)>, SettingError> {
        let scheme = &self.scheme;
        let key = match scheme.key {
            KeyForm::Ed25519 { public, private } => key::seed(public, private, secret)?,
            form => key::read(form, secret, false)?,
        };
        let stamp = scheme
            .stamp
            .as_ref()
            .map(|stamp| (stamp, stamp.unit.now(now).to_string()));
        let mut fields: Vec<(String, String)> = Vec::new();
        if let Some(name) = &scheme.id_header {
            fields.push((name.to_string(), id.to_owned()));
        }
        if let Some((
            Stamp {
                from: StampFrom::Header(name),
                ..
            },
            text,
        )) = &stamp
        {
            fields.push((name.to_string(), text.clone()));
        }
        for name in self.template.headers() {
            if !fields.iter().any(|(set, _)| set.eq_ignore_ascii_case(name)) {
                fields.push((name.to_owned(), id.to_owned()));
            }
        }
        let headers: Headers = fields.iter().cloned().collect();
        let parts = self
            .template
            .fill(&Values {
                body: payload,
                timestamp: stamp.as_ref().map(|(_, text)| text.as_bytes()),
                id: Some(id.as_bytes()),
                url: self.public_url.as_deref(),
                headers: &headers,
            })
            .map_err(|_| SettingError("this id cannot be signed by this scheme".to_owned()))?;
        let signature = scheme
            .algorithm
            .sign(&key, &parts)
            .ok_or_else(|| SettingError("this key cannot sign".to_owned()))?;
        let text = scheme.encoding.encode(&signature);
        let value = match (&scheme.layout, &stamp) {
            (Layout::Single { prefix }, _) => format!("{prefix}{text}"),
            (
                Layout::Items {
                    separator,
                    join,
                    version,
                },
                stamp,
            ) => {
                let (separator, join) = (char::from(*separator), char::from(*join));
                match stamp {
                    Some((
                        Stamp {
                            from: StampFrom::Item(name),
                            ..
                        },
                        time,
                    )) => format!("{name}{join}{time}{separator}{version}{join}{text}"),
                    _ => format!("{version}{join}{text}"),
                }
            }
        };
        fields.push((scheme.header.to_string(), value));
        Ok(fields)
    }

    /// Names of the headers that are needed to verify the request again.
    pub(crate) fn headers(&self) -> Vec<String> {
        let scheme = &self.scheme;
        let stamp = match &scheme.stamp {
            Some(Stamp {
                from: StampFrom::Header(name),
                ..
            }) => Some(name.as_ref()),
            _ => None,
        };
        std::iter::once(scheme.header.as_ref())
            .chain(stamp)
            .chain(scheme.id_header.as_deref())
            .chain(self.template.headers())
            .map(str::to_ascii_lowercase)
            .collect()
    }

    fn stamp_text<'a>(
        &'a self,
        stamp: &'a Stamp,
        headers: &'a Headers,
        value: &'a [u8],
    ) -> Result<&'a [u8], Refusal> {
        match (&stamp.from, &self.scheme.layout) {
            (StampFrom::Header(name), _) => headers.only(name)?.ok_or(Refusal::MissingSignature),
            (StampFrom::Item(name), layout) => {
                let mut times = layout
                    .items(value)
                    .filter(|(item, _)| *item == name.as_bytes());
                match (times.next(), times.next()) {
                    (Some((_, text)), None) => Ok(text),
                    _ => Err(Refusal::MalformedSignature),
                }
            }
        }
    }

    /// The decoded signatures of the right version; those that do not decode are skipped.
    fn signatures(&self, value: &[u8]) -> Result<Vec<Vec<u8>>, Refusal> {
        let bytes = self.scheme.algorithm.bytes();
        let decode = |text: &[u8]| self.scheme.encoding.decode(text, bytes);
        let decoded: Vec<Vec<u8>> = match &self.scheme.layout {
            Layout::Single { prefix } => value
                .strip_prefix(prefix.as_bytes())
                .and_then(decode)
                .into_iter()
                .collect(),
            layout @ Layout::Items { version, .. } => layout
                .items(value)
                .filter(|(name, _)| *name == version.as_bytes())
                .filter_map(|(_, text)| decode(text))
                .take(CANDIDATES_MAX + 1)
                .collect(),
        };
        if decoded.is_empty() || decoded.len() > CANDIDATES_MAX {
            return Err(Refusal::MalformedSignature);
        }
        Ok(decoded)
    }
}

impl Layout {
    /// Name and value of each item that has both.
    fn items<'a>(&'a self, value: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let (separator, join) = match self {
            Self::Items {
                separator, join, ..
            } => (*separator, *join),
            // One item without a name: nothing is found in it.
            Self::Single { .. } => (0, 0),
        };
        value
            .split(move |byte| *byte == separator)
            .filter_map(move |item| {
                let item = item.trim_ascii();
                let at = item.iter().position(|byte| *byte == join)?;
                Some((item.get(..at)?, item.get(at + 1..)?))
            })
    }
}

fn is_url(text: &str) -> bool {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        !rest.is_empty()
            && !rest.starts_with('/')
            && rest.bytes().all(|byte| byte.is_ascii_graphic())
    })
}
