//! A provider made of data: a [`Scheme`] to verify and sign by, [`EventRules`] to read by.

use std::sync::Arc;

use jiff::Timestamp;

use crate::domain::{Digest, Item, Refusal, Secret, SecretText};

use super::headers::NEVER_STORED;
use super::key;
use super::reading::{EventRules, Field};
use super::samples::Samples;
use super::scheme::{Check, Scheme};
use super::{Options, Provider, Reply, Request, SettingError, SignedRequest, Verified};

/// One entry of the table of presets.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub(crate) name: &'static str,
    pub(crate) dialect: Option<&'static str>,
    /// One line on the scheme.
    pub(crate) about: &'static str,
    /// One line on what the signature covers, and what it does not.
    pub(crate) covers: &'static str,
    pub(crate) scheme: Scheme,
    pub(crate) event: EventRules,
    /// Further headers to keep with the request, lower case.
    pub(crate) stored: &'static [&'static str],
    /// Body of the acknowledgement, where the sender wants its own.
    pub(crate) reply: Option<&'static str>,
    pub(crate) samples: Samples,
}

/// A table entry bound to the options of one source.
#[derive(Debug)]
pub(crate) struct Preset {
    declared: Declared,
    check: Check,
}

impl Declared {
    /// Binds the entry to a source's options.
    pub(crate) fn bind(self, options: &Options) -> Result<Arc<dyn Provider>, SettingError> {
        let check = Check::new(
            self.scheme.clone(),
            options.tolerance,
            options.public_url.as_deref(),
        )?;
        Ok(Arc::new(Preset {
            declared: self,
            check,
        }))
    }
}

impl Provider for Preset {
    fn name(&self) -> &'static str {
        self.declared.name
    }

    fn key(&self, text: &SecretText, strict: bool) -> Result<Vec<u8>, SettingError> {
        key::read(self.declared.scheme.key, text, strict)
    }

    fn verify(
        &self,
        request: &Request<'_>,
        secrets: &[Secret],
        now: Timestamp,
    ) -> Result<Verified, Refusal> {
        self.check.verify(request, secrets, now)
    }

    fn unwrap(&self, request: &Request<'_>, _verified: &Verified) -> Vec<Item> {
        vec![self.declared.event.read(request)]
    }

    fn comparable(&self, rule: i16, item: &[u8]) -> Option<Digest> {
        self.declared.event.comparable(rule, item)
    }

    fn has_modes(&self) -> bool {
        self.declared.event.mode.is_some()
    }

    fn recipe(&self) -> String {
        self.declared.event.recipe(self.declared.name)
    }

    fn acknowledge(&self) -> Option<Reply> {
        self.declared.reply.map(Reply::text)
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let event = &self.declared.event;
        if event.id.is_empty() {
            warnings.push(
                "no `event_id` rule: events are told apart by a digest of their content, so two real events with equal content count as one"
                    .to_owned(),
            );
        }
        let signed = self.check.headers();
        for field in event.id.iter().flat_map(|part| part.iter()) {
            if let Field::Header(name) = field
                && !signed.contains(&name.to_ascii_lowercase())
            {
                warnings.push(format!(
                    "the event id is taken from the header {name}, which the signature does not cover: whoever captured one request can send it again under other ids"
                ));
            }
        }
        warnings
    }

    fn sign(
        &self,
        payload: &[u8],
        event_type: &str,
        id: &str,
        secret: &SecretText,
        now: Timestamp,
    ) -> Result<SignedRequest, SettingError> {
        let event = &self.declared.event;
        let mut headers = self.check.sign(payload, id, secret, now)?;
        let mut add = |name: &str, value: &str| {
            if !headers
                .iter()
                .any(|(set, _)| set.eq_ignore_ascii_case(name))
            {
                headers.push((name.to_owned(), value.to_owned()));
            }
        };
        for field in event.id.iter().flat_map(|part| part.iter()) {
            if let Field::Header(name) = field {
                add(name, id);
            }
        }
        if let Some(Field::Header(name)) = &event.event_type {
            add(name, event_type);
        }
        for field in event.entity.iter() {
            if let Field::Header(name) = field {
                add(name, id);
            }
        }
        add("Content-Type", "application/json");
        Ok(SignedRequest {
            headers,
            body: payload.to_vec(),
        })
    }

    fn sample(&self, event_type: &str, unique: &str, now: Timestamp) -> Option<Vec<u8>> {
        self.declared
            .samples
            .payload(&self.declared.event, event_type, unique, now)
    }

    fn sample_types(&self) -> Vec<&'static str> {
        self.declared.samples.types()
    }

    fn stored_headers(&self) -> Vec<String> {
        let mut names = self.check.headers();
        names.extend(self.declared.event.headers());
        names.extend(self.declared.stored.iter().map(|name| (*name).to_owned()));
        names.retain(|name| !NEVER_STORED.contains(&name.as_str()));
        names.sort_unstable();
        names.dedup();
        names
    }
}
