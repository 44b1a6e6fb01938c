//! Adyen's standard notifications: several items in one body, each with its own signature inside.
//!
//! What an item's signature covers is decoded text, not bytes, so the rest must leave no second
//! reading: see [`Notification::signed`]. Unsigned members (`eventDate`, `live`, `reason`, most of
//! `additionalData`) never enter the key.
//!
//! # Source
//!
//! Adyen's documentation, "Verify HMAC signatures", "Handle webhook events" and "Webhook best
//! practices"; tests of its PHP, Node and Python libraries (see `fixtures/adyen`).

use std::borrow::Cow;
use std::ops::Range;

use jiff::Timestamp;

use crate::domain::fingerprint::Rule;
use crate::domain::json::{Document, Found, Kind, Value};
use crate::domain::{Digest, EventKey, Item, KeyError, Mode, Reading, Refusal, Secret, SecretText};

use super::key::{self, KeyForm};
use super::mac::{Algorithm, Encoding, Hash};
use super::presets::ADYEN_SAMPLES;
use super::reading::{name, time, unreadable, unusable};
use super::samples::Samples;
use super::{Options, Provider, Reply, Request, SettingError, SignedRequest, Verified};

pub(crate) const NAME: &str = "adyen";
pub(crate) const ABOUT: &str =
    "hmacSignature inside each item: HMAC-SHA256 in base64; secret = the key in hex";
pub(crate) const COVERS: &str =
    "eight fields of each item, not eventDate, live, reason or the rest of additionalData; no time";

const ALGORITHM: Algorithm = Algorithm::Hmac(Hash::Sha256);
const SAMPLES: Samples = Samples::Listed(ADYEN_SAMPLES);

/// A retry after a change of the key is signed anew.
const RULES: &[Rule] = &[Rule {
    number: 1,
    volatile: &["/additionalData/hmacSignature"],
}];

/// The signed fields in their order.
const SIGNED: [&str; 8] = [
    "/pspReference",
    "/originalReference",
    "/merchantAccountCode",
    MERCHANT_REFERENCE,
    "/amount/value",
    "/amount/currency",
    "/eventCode",
    "/success",
];
const MERCHANT_REFERENCE: &str = "/merchantReference";

/// The preset for standard notifications. It has no options.
#[derive(Debug)]
pub(crate) struct Standard;

impl Standard {
    pub(crate) fn new(options: &Options) -> Result<Self, SettingError> {
        if options.tolerance.is_some() {
            return Err(SettingError(
                "`tolerance` cannot be kept: this sender signs no time".to_owned(),
            ));
        }
        if options.public_url.is_some() {
            return Err(SettingError(
                "`public_url` is not used: the signature does not cover the address".to_owned(),
            ));
        }
        Ok(Self)
    }
}

/// One `NotificationRequestItem`.
struct Notification<'d>(Value<'d>);

/// The items of a body, each as its element of the array.
fn elements<'d>(document: &'d Document<'d>) -> Result<Vec<Value<'d>>, Refusal> {
    let root = document.root();
    let mut lists = root
        .members()
        .filter(|(name, _)| name == "notificationItems");
    match (lists.next(), lists.next()) {
        (Some((_, list)), None) if list.kind() == Kind::Array => {
            let elements: Vec<_> = list.elements().collect();
            if elements.is_empty() {
                return Err(Refusal::MissingSignature);
            }
            Ok(elements)
        }
        _ => Err(Refusal::MalformedBody),
    }
}

impl<'d> Notification<'d> {
    /// Names that occur twice are refused: the signature would cover one value and a handler
    /// might read the other.
    fn read(element: Value<'d>) -> Result<Self, Refusal> {
        match element.pointer("/NotificationRequestItem") {
            Some(item) if item.kind() == Kind::Object && !element.repeats_names() => Ok(Self(item)),
            _ => Err(Refusal::MalformedBody),
        }
    }

    /// Decoded text of a field; absent and null are the empty text.
    fn field(&self, pointer: &str) -> Option<Cow<'d, str>> {
        let Some(value) = self.0.pointer(pointer) else {
            return Some(Cow::Borrowed(""));
        };
        match value.kind() {
            Kind::String => value.string(),
            Kind::Number | Kind::Bool => Some(Cow::Borrowed(value.raw())),
            Kind::Null => Some(Cow::Borrowed("")),
            Kind::Array | Kind::Object => None,
        }
    }

    /// The signed text: the fields joined with `:`, nothing escaped, nothing trimmed.
    ///
    /// Only the merchant's own reference may hold a `:`. With another such field the text could
    /// be cut in two ways, and a captured item be sent again as one with another reference.
    fn signed(&self) -> Result<String, Refusal> {
        let mut text = String::new();
        for (index, pointer) in SIGNED.iter().enumerate() {
            let field = self.field(pointer).ok_or(Refusal::MalformedBody)?;
            if *pointer != MERCHANT_REFERENCE && field.contains(':') {
                return Err(Refusal::MalformedBody);
            }
            if index > 0 {
                text.push(':');
            }
            text.push_str(&field);
        }
        Ok(text)
    }

    /// The label of the secret that signed the item.
    fn verify(&self, secrets: &[Secret], now: Timestamp) -> Result<String, Refusal> {
        let signature = match self.0.pointer("/additionalData/hmacSignature") {
            None => return Err(Refusal::MissingSignature),
            Some(value) => match value.string() {
                Some(text) if text.is_empty() => return Err(Refusal::MissingSignature),
                Some(text) => text,
                None if value.kind() == Kind::Null => return Err(Refusal::MissingSignature),
                None => return Err(Refusal::MalformedSignature),
            },
        };
        let received = Encoding::Base64
            .decode(signature.as_bytes(), ALGORITHM.bytes())
            .ok_or(Refusal::MalformedSignature)?;
        let signed = self.signed()?;
        secrets
            .iter()
            .filter(|secret| secret.alive(now))
            .find(|secret| {
                ALGORITHM.any_matches(
                    &secret.key,
                    &[signed.as_bytes()],
                    std::slice::from_ref(&received),
                )
            })
            .map(|secret| secret.label.clone())
            .ok_or(Refusal::BadSignature)
    }

    fn item(&self, mode: Mode) -> Item {
        self.try_item(mode)
            .unwrap_or_else(|reason| unreadable(self.0.raw().as_bytes(), self.0.span(), reason))
    }

    fn try_item(&self, mode: Mode) -> Result<Item, &'static str> {
        let field = |pointer| {
            self.field(pointer)
                .ok_or("a member that is needed is neither text nor a number")
        };
        let psp = field("/pspReference")?;
        let code = field("/eventCode")?;
        let original = field("/originalReference")?;
        if psp.is_empty() || code.is_empty() {
            return Err(unusable(KeyError::Missing));
        }
        let success = field("/success")?;
        let mut key = EventKey::of_parts([psp.as_ref(), &code, &success]).map_err(unusable)?;
        if !original.is_empty() {
            key = key.with("original", &original).map_err(unusable)?;
        }
        let canonical_digest = RULES.last().and_then(|rule| rule.digest(self.0));
        Ok(Item {
            key,
            provider_id: None,
            event_type: Some(name(&code).ok_or("the event type is unusable")?),
            entity: name(if original.is_empty() { &psp } else { &original }),
            account: name(&field("/merchantAccountCode")?).filter(|account| !account.is_empty()),
            mode: Some(mode),
            occurred_at: self.0.pointer("/eventDate").and_then(time),
            range: self.0.span(),
            raw_digest: Digest::of(self.0.raw().as_bytes()),
            canonical_digest,
            digest_rule: canonical_digest
                .and(RULES.last())
                .map_or(Rule::RAW, |rule| rule.number),
            reading: Reading::Event,
        })
    }
}

/// `live` of the whole body: text or flag, unsigned.
fn mode(document: &Document<'_>) -> Mode {
    match document.find("/live") {
        Found::One(value) => match value.string().as_deref().unwrap_or(value.raw()) {
            "true" => Mode::Live,
            "false" => Mode::Test,
            _ => Mode::Unknown,
        },
        Found::Missing | Found::Repeated(_) => Mode::Unknown,
    }
}

impl Provider for Standard {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self, text: &SecretText, strict: bool) -> Result<Vec<u8>, SettingError> {
        key::read(KeyForm::Hex, text, strict)
    }

    /// Each item stands for itself; the request is refused when none holds, with the first item's
    /// reason.
    fn verify(
        &self,
        request: &Request<'_>,
        secrets: &[Secret],
        now: Timestamp,
    ) -> Result<Verified, Refusal> {
        let document = Document::parse(request.body).map_err(|_| Refusal::MalformedBody)?;
        let mode = mode(&document);
        let mut label = None;
        let mut items = Vec::new();
        let mut refused_items = Vec::new();
        for (index, element) in elements(&document)?.into_iter().enumerate() {
            let checked = Notification::read(element)
                .and_then(|item| Ok((item.verify(secrets, now)?, item.item(mode))));
            match checked {
                Ok((matched, item)) => {
                    label = label.or(Some(matched));
                    items.push(item);
                }
                Err(refusal) => refused_items.push((index, refusal)),
            }
        }
        match (label, refused_items.first()) {
            (Some(secret_label), _) => Ok(Verified {
                secret_label,
                refused_items,
                items,
            }),
            (None, Some((_, refusal))) => Err(*refusal),
            (None, None) => Err(Refusal::MissingSignature),
        }
    }

    fn unwrap(&self, _request: &Request<'_>, verified: &Verified) -> Vec<Item> {
        verified.items.clone()
    }

    fn comparable(&self, rule: i16, item: &[u8]) -> Option<Digest> {
        Rule::numbered(RULES, rule)?.digest(Document::parse(item).ok()?.root())
    }

    fn has_modes(&self) -> bool {
        true
    }

    fn recipe(&self) -> String {
        "adyen: json:/pspReference + json:/eventCode + json:/success, original = json:/originalReference"
            .to_owned()
    }

    fn acknowledge(&self) -> Option<Reply> {
        Some(Reply::text("[accepted]"))
    }

    /// Signs every item of a notification in place; nothing else of its text changes.
    fn sign(
        &self,
        payload: &[u8],
        _event_type: &str,
        _id: &str,
        secret: &SecretText,
        _now: Timestamp,
    ) -> Result<SignedRequest, SettingError> {
        let key = self.key(secret, false)?;
        let strange = |_| {
            SettingError("the payload is no Adyen notification with notificationItems".to_owned())
        };
        let document = Document::parse(payload)
            .map_err(|_| SettingError("the payload is no JSON".to_owned()))?;
        let mut body = payload.to_vec();
        // From the back, so that the places before stay true.
        for element in elements(&document).map_err(strange)?.into_iter().rev() {
            let item = Notification::read(element).map_err(strange)?;
            let signed = item.signed().map_err(strange)?;
            let signature = ALGORITHM
                .sign(&key, &[signed.as_bytes()])
                .map(|mac| Encoding::Base64.encode(&mac))
                .unwrap_or_default();
            let (range, text) = place(item.0, &signature);
            body.splice(range, text.into_bytes());
        }
        Ok(SignedRequest {
            headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
            body,
        })
    }

    fn sample(&self, event_type: &str, unique: &str, now: Timestamp) -> Option<Vec<u8>> {
        SAMPLES.listed(event_type, unique, now)
    }

    fn sample_types(&self) -> Vec<&'static str> {
        SAMPLES.types()
    }

    fn stored_headers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Which bytes of the body a signature replaces, and by what.
fn place(item: Value<'_>, signature: &str) -> (Range<usize>, String) {
    if let Some(old) = item.pointer("/additionalData/hmacSignature") {
        return (old.span(), format!("\"{signature}\""));
    }
    let (object, member) = match item.pointer("/additionalData") {
        Some(data) if data.kind() == Kind::Object => {
            (data, format!("\"hmacSignature\":\"{signature}\""))
        }
        _ => (
            item,
            format!("\"additionalData\":{{\"hmacSignature\":\"{signature}\"}}"),
        ),
    };
    let comma = if object.members().next().is_some() {
        ","
    } else {
        ""
    };
    let at = object.span().start + 1;
    (at..at, format!("{member}{comma}"))
}
