//! The declarative half of reading: which fields name the event, its type, its object.
//!
//! Reading never fails. What cannot be read is an item in state unreadable under a key made of
//! the body's digest, so that it is kept, counted and readable again after a fix.

use std::borrow::Cow;

use jiff::Timestamp;

use crate::domain::fingerprint::Rule;
use crate::domain::json::{Document, Found, Kind, Value};
use crate::domain::{Digest, EventKey, Item, KeyError, Mode, Reading};

use super::scheme::Text;
use super::{Headers, Request, form};

/// Longest type, entity or account that is kept, in bytes.
pub const NAME_BYTES_MAX: usize = 1_024;

/// Where a text is taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Field {
    /// JSON Pointer into the body.
    Json(Text),
    /// Name of a header.
    Header(Text),
}

/// What the body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// JSON, or a form with the JSON in this field.
    Json { form_field: Option<&'static str> },
    /// JSON, or nothing at all.
    JsonOrEmpty,
    /// Anything: nothing is taken from it.
    Any,
}

/// What an event is called when its id is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// The sender always gives one: unreadable.
    Unreadable,
    /// `content:<digest>`.
    Content,
}

/// Where live and test are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModeField {
    /// A member that is `true` for live.
    Flag(&'static str),
    /// A member that says `live` or `test`.
    Word(&'static str),
}

/// How events are read out of a body that is one event.
#[derive(Debug, Clone)]
pub(crate) struct EventRules {
    pub(crate) format: Format,
    /// Parts of the key, each with alternatives of which the first present one counts.
    pub(crate) id: Cow<'static, [Cow<'static, [Field]>]>,
    pub(crate) otherwise: Otherwise,
    /// Further parts written `name=value` when present: name and JSON Pointer.
    pub(crate) named: &'static [(&'static str, &'static str)],
    pub(crate) event_type: Option<Field>,
    /// The first present one counts.
    pub(crate) entity: Cow<'static, [Field]>,
    /// JSON Pointers; the first present one counts.
    pub(crate) account: &'static [&'static str],
    pub(crate) mode: Option<ModeField>,
    /// JSON Pointer to unix seconds or RFC 3339 text.
    pub(crate) occurred_at: Option<&'static str>,
    /// Types that are stored and never run, with the reason.
    pub(crate) ignored: &'static [(&'static str, &'static str)],
    /// Digest rules, the newest last.
    pub(crate) rules: &'static [Rule],
}

/// Where fields are looked up.
#[derive(Clone, Copy)]
struct Place<'d> {
    headers: &'d Headers,
    document: Option<&'d Document<'d>>,
}

/// What a field holds.
enum Looked<'d> {
    Text(Cow<'d, str>),
    Absent,
    Unusable(&'static str),
}

impl EventRules {
    /// Reads the one event of a request.
    pub(crate) fn read(&self, request: &Request<'_>) -> Item {
        let unreadable = |reason| self.unreadable(request, None, reason);
        let error = match Document::parse(request.body) {
            Ok(document) => return self.event(request, Some(&document)),
            Err(error) => error,
        };
        match self.format {
            Format::Any => self.event(request, None),
            Format::JsonOrEmpty if request.body.is_empty() => self.event(request, None),
            Format::Json {
                form_field: Some(name),
            } => match form::field(request.body, name) {
                Some(text) => match Document::parse(&text) {
                    Ok(document) => self.event(request, Some(&document)),
                    Err(error) => unreadable(error.reason()),
                },
                None => unreadable(error.reason()),
            },
            Format::JsonOrEmpty | Format::Json { form_field: None } => unreadable(error.reason()),
        }
    }

    /// Digest of the comparable content of a stored item under a numbered rule.
    pub(crate) fn comparable(&self, rule: i16, item: &[u8]) -> Option<Digest> {
        let rule = Rule::numbered(self.rules, rule)?;
        if let Ok(document) = Document::parse(item) {
            return rule.digest(document.root());
        }
        let Format::Json {
            form_field: Some(name),
        } = self.format
        else {
            return None;
        };
        let text = form::field(item, name)?;
        rule.digest(Document::parse(&text).ok()?.root())
    }

    /// The id recipe in words; see [`super::Provider::recipe`].
    pub(crate) fn recipe(&self, preset: &str) -> String {
        let parts: Vec<String> = self
            .id
            .iter()
            .map(|part| {
                let fields: Vec<String> = part.iter().map(Field::words).collect();
                fields.join(" | ")
            })
            .collect();
        let mut words = Vec::new();
        if !parts.is_empty() {
            words.push(parts.join(" + "));
        }
        if self.otherwise == Otherwise::Content {
            // The digest in such a key is made by the newest rule: another rule, other keys.
            let rule = self.rules.last().map_or(Rule::RAW, |rule| rule.number);
            let or = if parts.is_empty() { "" } else { "else " };
            words.push(format!("{or}content by rule {rule}"));
        }
        if !self.account.is_empty() {
            let pointers: Vec<String> = self.account.iter().map(|p| format!("json:{p}")).collect();
            words.push(format!("account = {}", pointers.join(" | ")));
        }
        for (name, pointer) in self.named {
            words.push(format!("{name} = json:{pointer}"));
        }
        if let Some(ModeField::Flag(pointer) | ModeField::Word(pointer)) = self.mode {
            words.push(format!("mode = json:{pointer}"));
        }
        format!("{preset}: {}", words.join(", "))
    }

    /// Names of the headers it reads.
    pub(crate) fn headers(&self) -> Vec<String> {
        self.id
            .iter()
            .flat_map(|part| part.iter())
            .chain(&self.event_type)
            .chain(self.entity.iter())
            .filter_map(|field| match field {
                Field::Header(name) => Some(name.to_ascii_lowercase()),
                Field::Json(_) => None,
            })
            .collect()
    }

    fn event(&self, request: &Request<'_>, document: Option<&Document<'_>>) -> Item {
        match self.try_event(request, document) {
            Ok(item) => item,
            Err(reason) => self.unreadable(request, document, reason),
        }
    }

    fn try_event(
        &self,
        request: &Request<'_>,
        document: Option<&Document<'_>>,
    ) -> Result<Item, &'static str> {
        let place = Place {
            headers: request.headers,
            document,
        };
        let raw_digest = Digest::of(request.body);
        let (digest_rule, canonical_digest) = match (document, self.rules.last()) {
            (Some(document), Some(rule)) => match rule.digest(document.root()) {
                Some(digest) => (rule.number, Some(digest)),
                None => (Rule::RAW, None),
            },
            _ => (Rule::RAW, None),
        };
        let event_type = match self.event_type.as_ref().map(|field| place.field(field)) {
            Some(Looked::Text(text)) => Some(name(&text).ok_or("the event type is unusable")?),
            Some(Looked::Absent) | None => None,
            Some(Looked::Unusable(reason)) => return Err(reason),
        };
        let account = self.account(place)?;
        let mode = self.mode.map(|mode| mode.look(document));

        let ids = self.ids(place)?;
        let mut key = match (&ids, self.otherwise) {
            (Some(ids), _) => {
                EventKey::of_parts(ids.iter().map(AsRef::as_ref)).map_err(unusable)?
            }
            (None, Otherwise::Content) => {
                EventKey::of_content(&canonical_digest.unwrap_or(raw_digest))
            }
            (None, Otherwise::Unreadable) => return Err(unusable(KeyError::Missing)),
        };
        if let Some(account) = &account {
            key = key.with("account", account).map_err(unusable)?;
        }
        for (part, pointer) in self.named {
            match place.json(pointer) {
                Looked::Text(value) => key = key.with(part, &value).map_err(unusable)?,
                Looked::Absent => {}
                Looked::Unusable(reason) => return Err(reason),
            }
        }
        if let Some(mode) = mode
            && mode != Mode::Live
        {
            key = key.with("mode", mode.as_str()).map_err(unusable)?;
        }

        let ignored = self
            .ignored
            .iter()
            .find(|(ignored, _)| event_type.as_deref() == Some(ignored));
        Ok(Item {
            key,
            provider_id: match ids.as_deref() {
                Some([id]) => Some(id.clone().into_owned()),
                _ => None,
            },
            event_type,
            entity: self.entity(place),
            account,
            mode,
            occurred_at: self.occurred_at.and_then(|at| time(document?.pointer(at)?)),
            range: 0..request.body.len(),
            raw_digest,
            canonical_digest,
            digest_rule,
            reading: match ignored {
                Some((_, reason)) => Reading::Ignored(reason),
                None => Reading::Event,
            },
        })
    }

    /// The parts of the id; `None` when one of them is absent.
    fn ids<'d>(&'d self, place: Place<'d>) -> Result<Option<Vec<Cow<'d, str>>>, &'static str> {
        let mut ids = Vec::with_capacity(self.id.len());
        for part in self.id.iter() {
            let mut found = None;
            for field in part.iter() {
                match place.field(field) {
                    Looked::Text(text) => {
                        found = Some(text);
                        break;
                    }
                    Looked::Absent => {}
                    Looked::Unusable(reason) => return Err(reason),
                }
            }
            match found {
                Some(text) => ids.push(text),
                None => return Ok(None),
            }
        }
        Ok((!ids.is_empty()).then_some(ids))
    }

    fn account(&self, place: Place<'_>) -> Result<Option<String>, &'static str> {
        for pointer in self.account {
            match place.json(pointer) {
                Looked::Text(text) => return Ok(Some(text.into_owned())),
                Looked::Absent => {}
                Looked::Unusable(reason) => return Err(reason),
            }
        }
        Ok(None)
    }

    fn entity<'d>(&'d self, place: Place<'d>) -> Option<String> {
        self.entity
            .iter()
            .find_map(|field| match place.field(field) {
                Looked::Text(text) => name(&text),
                _ => None,
            })
    }

    fn unreadable(
        &self,
        request: &Request<'_>,
        document: Option<&Document<'_>>,
        reason: &'static str,
    ) -> Item {
        let place = Place {
            headers: request.headers,
            document,
        };
        let event_type = self.event_type.as_ref();
        let event_type = event_type.and_then(|field| match place.field(field) {
            Looked::Text(text) => name(&text),
            _ => None,
        });
        Item {
            event_type,
            ..unreadable(request.body, 0..request.body.len(), reason)
        }
    }
}

/// An item that was verified and cannot be read: kept whole, under a key of its digest.
pub(crate) fn unreadable(
    bytes: &[u8],
    range: std::ops::Range<usize>,
    reason: &'static str,
) -> Item {
    let raw_digest = Digest::of(bytes);
    Item {
        key: EventKey::of_digest(&raw_digest),
        provider_id: None,
        event_type: None,
        entity: None,
        account: None,
        mode: None,
        occurred_at: None,
        range,
        raw_digest,
        canonical_digest: None,
        digest_rule: Rule::RAW,
        reading: Reading::Unreadable(reason),
    }
}

/// Why an id is no key, as a constant sentence.
pub(crate) fn unusable(error: KeyError) -> &'static str {
    match error {
        KeyError::TooLong => "the event id is too long",
        KeyError::Nul => "the event id holds a NUL byte",
        _ => "the event carries no id",
    }
}

/// A text that fits the columns: not too long, no NUL byte.
pub(crate) fn name(text: &str) -> Option<String> {
    (text.len() <= NAME_BYTES_MAX && !text.contains('\0')).then(|| text.to_owned())
}

/// Unix seconds, or RFC 3339 text.
pub(crate) fn time(value: Value<'_>) -> Option<Timestamp> {
    match value.kind() {
        Kind::Number => Timestamp::from_second(value.number()?.parse().ok()?).ok(),
        Kind::String => value.string()?.parse().ok(),
        _ => None,
    }
}

impl Field {
    /// `json:/ptr` or `header:NAME`, as in the configuration.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Json(pointer) => format!("json:{pointer}"),
            Self::Header(name) => format!("header:{}", name.to_ascii_lowercase()),
        }
    }
}

impl<'d> Place<'d> {
    fn field(self, field: &'d Field) -> Looked<'d> {
        match field {
            Field::Json(pointer) => self.json(pointer),
            Field::Header(name) => self.header(name),
        }
    }

    fn header(self, name: &'d str) -> Looked<'d> {
        let mut values = self.headers.all(name).map(<[u8]>::trim_ascii);
        match (values.next(), values.next()) {
            (None | Some([]), None) => Looked::Absent,
            (Some(value), None) => match std::str::from_utf8(value) {
                Ok(text) => Looked::Text(Cow::Borrowed(text)),
                Err(_) => Looked::Unusable("a header that is needed is not UTF-8"),
            },
            _ => Looked::Unusable("a header that is needed is repeated"),
        }
    }

    fn json(self, pointer: &str) -> Looked<'d> {
        let found = self.document.map_or(Found::Missing, |d| d.find(pointer));
        let value = match found {
            Found::One(value) => value,
            Found::Missing => return Looked::Absent,
            Found::Repeated(_) => return Looked::Unusable("a member that is needed occurs twice"),
        };
        match value.kind() {
            Kind::String => match value.string() {
                Some(text) if !text.is_empty() => Looked::Text(text),
                _ => Looked::Absent,
            },
            // By its text: a number is never rounded on the way into a key.
            Kind::Number => Looked::Text(Cow::Borrowed(value.raw())),
            Kind::Null => Looked::Absent,
            _ => Looked::Unusable("a member that is needed is neither text nor a number"),
        }
    }
}

impl ModeField {
    fn look(self, document: Option<&Document<'_>>) -> Mode {
        let (Self::Flag(pointer) | Self::Word(pointer)) = self;
        let Some(Found::One(value)) = document.map(|document| document.find(pointer)) else {
            return Mode::Unknown;
        };
        let live = match self {
            Self::Flag(_) => value.bool(),
            Self::Word(_) => match value.string().as_deref() {
                Some("live") => Some(true),
                Some("test") => Some(false),
                _ => None,
            },
        };
        match live {
            Some(true) => Mode::Live,
            Some(false) => Mode::Test,
            None => Mode::Unknown,
        }
    }
}
