//! The signed request and the keys its events will have.

use jiff::Timestamp;

use crate::config::{self, Environment, SourceSettings};
use crate::domain::SecretText;
use crate::provider::{Headers, Provider, Request, SignedRequest};

use super::super::failure::Failure;

/// The moment samples with a chosen id tell of, so that the same id gives the same bytes: a copy
/// with other content would be a conflict, not a duplicate.
const FIXED: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// What goes over the wire.
pub(super) struct Prepared {
    pub(super) signed: SignedRequest,
    pub(super) keys: Vec<String>,
}

/// The secret of `--secret`.
pub(super) fn secret(
    written: Option<&str>,
    environment: &Environment,
) -> Result<Option<SecretText>, Failure> {
    written
        .map(|written| config::secret_text(written, environment))
        .transpose()
        .map_err(|message| Failure::usage(format!("--secret: {message}")))
}

impl Prepared {
    /// Samples or takes a payload and signs it.
    pub(super) fn new(
        source: &SourceSettings,
        event_type: &str,
        payload: Option<&[u8]>,
        id: Option<&str>,
        secret: Option<&SecretText>,
        url: &reqwest::Url,
    ) -> Result<Self, Failure> {
        let provider = &source.source.provider;
        let now = Timestamp::now();
        let random = hex::encode(rand::random::<[u8; 12]>());
        let sample = || match id {
            Some(id) => provider.sample(event_type, id, FIXED),
            None => provider.sample(event_type, &random, now),
        };
        let payload = match payload {
            Some(payload) => payload.to_vec(),
            None => sample().ok_or_else(|| no_sample(provider.as_ref(), event_type))?,
        };
        let delivery_id = id.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
        let sign =
            |secret: &SecretText| provider.sign(&payload, event_type, &delivery_id, secret, now);
        let signed = match secret {
            Some(secret) => {
                sign(secret).map_err(|error| Failure::usage(format!("--secret: {error}")))?
            }
            None => sign_with_configured(source, now, sign)?,
        };
        let keys = keys(source, &signed, url, now);
        Ok(Self { signed, keys })
    }
}

fn no_sample(provider: &dyn Provider, event_type: &str) -> Failure {
    Failure::no(format!(
        "there is no sample of type {event_type:?} for provider {:?}",
        provider.name()
    ))
    .hint(format!(
        "samples: {}; or give your own bytes with --payload FILE",
        provider.sample_types().join(", ")
    ))
}

/// The first living secret that can sign.
fn sign_with_configured<E: std::fmt::Display>(
    source: &SourceSettings,
    now: Timestamp,
    sign: impl Fn(&SecretText) -> Result<SignedRequest, E>,
) -> Result<SignedRequest, Failure> {
    let living = source
        .source
        .secrets
        .iter()
        .zip(&source.texts)
        .filter(|(secret, _)| secret.alive(now));
    let mut problem = "every configured secret has ended".to_owned();
    for (secret, text) in living {
        match sign(text) {
            Ok(signed) => return Ok(signed),
            Err(error) => problem = format!("secret {:?} cannot sign: {error}", secret.label),
        }
    }
    Err(
        Failure::no(format!("source {:?}: {problem}", source.source.name))
            .hint("give one that can with --secret"),
    )
}

/// The keys the service will give the events: read as it will read them. Empty when what was
/// signed does not verify here (another secret was given on purpose).
fn keys(
    source: &SourceSettings,
    signed: &SignedRequest,
    url: &reqwest::Url,
    now: Timestamp,
) -> Vec<String> {
    let headers: Headers = signed
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let target = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let request = Request {
        method: "POST",
        target: &target,
        headers: &headers,
        body: &signed.body,
    };
    let provider = &source.source.provider;
    match provider.verify(&request, &source.source.secrets, now) {
        Ok(verified) => provider
            .unwrap(&request, &verified)
            .into_iter()
            .map(|item| item.key.to_string())
            .collect(),
        Err(_) => Vec::new(),
    }
}
