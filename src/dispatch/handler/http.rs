//! The `http` kind: a signed POST with a stable effect key.
//!
//! # Source
//!
//! Signature headers: Standard Webhooks specification. `Idempotency-Key`: IETF draft
//! draft-ietf-httpapi-idempotency-key-header. `Retry-After`: RFC 9110 §10.2.3.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use crate::domain::{EffectKey, Verdict};
use crate::store::delivery::{Lease, LeasedEvent};
use crate::store::handling::Payload;

use super::super::ActiveHandler;
use super::HttpTarget;

/// Time to make a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// What is sent.
pub(crate) struct Outgoing<'a> {
    pub(crate) source: &'a str,
    pub(crate) event: &'a LeasedEvent,
    pub(crate) lease: &'a Lease,
    pub(crate) payload: &'a Payload,
    pub(crate) effect_key: &'a EffectKey,
}

/// A client that follows no redirect and retries nothing: what was sent and how it ended is the
/// engine's business.
pub(crate) fn client() -> Result<reqwest::Client, reqwest::Error> {
    // reqwest is built without a TLS provider of its own; a second installation is no error.
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        // A proxy's refusal would be taken for the receiver's.
        .no_proxy()
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT)
        .pool_idle_timeout(Duration::from_secs(30))
        .user_agent(concat!("oncehook/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) verdict: Verdict,
    /// Whether the receiver answered as one that works; `None` when nothing was sent.
    pub(crate) works: Option<bool>,
}

/// Sends the event once and tells what is known of the result.
pub(crate) async fn send(
    client: &reqwest::Client,
    handler: &ActiveHandler,
    target: &HttpTarget,
    outgoing: &Outgoing<'_>,
) -> Sent {
    let headers = match headers(handler, target, outgoing) {
        Ok(headers) => headers,
        Err(error) => {
            return Sent {
                verdict: Verdict::Permanent { error },
                works: None,
            };
        }
    };
    let sent = client
        .post(&target.url)
        .headers(headers)
        .body(outgoing.payload.body.clone())
        .timeout(handler.spec.timeout)
        .send()
        .await;
    match sent {
        Ok(response) => {
            let status = response.status().as_u16();
            let after = retry_after(response.headers(), Timestamp::now());
            // Drained a little, so that the connection can be used again.
            drop(tokio::time::timeout(Duration::from_secs(1), response.chunk_limited()).await);
            Sent {
                verdict: of_status(status, after),
                works: Some(shows_health(status)),
            }
        }
        Err(error) => Sent {
            verdict: of_error(&error, handler.spec.timeout),
            works: Some(false),
        },
    }
}

/// Reads and drops the start of a body.
trait ChunkLimited {
    async fn chunk_limited(self);
}

impl ChunkLimited for reqwest::Response {
    async fn chunk_limited(mut self) {
        let mut read = 0;
        while let Ok(Some(chunk)) = self.chunk().await {
            read += chunk.len();
            if read > 64 * 1024 {
                break;
            }
        }
    }
}

/// What a status means. Only `on_unknown = "retry"` exists so far, so a result that is not known
/// is tried again under the same effect key.
fn of_status(status: u16, after: Option<Duration>) -> Verdict {
    match status {
        200..=299 => Verdict::Done { resource: None },
        408 | 409 | 425 | 429 | 503 => Verdict::Retry {
            after,
            error: format!("HTTP {status}: not done"),
        },
        500..=599 => Verdict::Retry {
            after,
            error: format!("HTTP {status}: result unknown"),
        },
        _ => Verdict::Permanent {
            error: format!("HTTP {status}"),
        },
    }
}

/// Whether a receiver that answers so works. A refusal of one event (409, 422) says nothing
/// against it; 408, 429 and 5xx say that it cannot keep up or is down.
fn shows_health(status: u16) -> bool {
    !matches!(status, 408 | 429 | 500..=599)
}

fn of_error(error: &reqwest::Error, timeout: Duration) -> Verdict {
    // Without the URL: it may hold a token.
    let error = if error.is_connect() {
        "not connected: the receiver got nothing".to_owned()
    } else if error.is_timeout() {
        format!("no answer within {timeout:?}: result unknown")
    } else {
        "the connection was cut before an answer: result unknown".to_owned()
    };
    Verdict::Retry { after: None, error }
}

/// `Retry-After` as seconds or as a date. The date is the receiver's, so it is measured from the
/// `Date` of the same answer: by a clock of ours that is wrong, the call would come early or late.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<u32>() {
        return Some(Duration::from_secs(u64::from(seconds)));
    }
    let from = headers.get(DATE).and_then(|date| date.to_str().ok());
    let from = from.and_then(moment).unwrap_or(now);
    Duration::try_from(moment(value)?.duration_since(from)).ok()
}

fn moment(date: &str) -> Option<Timestamp> {
    let date = jiff::fmt::rfc2822::parse(date.trim()).ok()?;
    Some(date.timestamp())
}

fn headers(
    handler: &ActiveHandler,
    target: &HttpTarget,
    outgoing: &Outgoing<'_>,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut set = |name: &str, value: &str| -> Result<(), String> {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| "a header name is invalid".to_owned())?;
        // Ids and types may hold any byte but NUL.
        let value = HeaderValue::from_str(value)
            .or_else(|_| HeaderValue::from_str(&escaped(value)))
            .map_err(|_| format!("the value of {name} cannot be sent"))?;
        headers.insert(name, value);
        Ok(())
    };
    set("content-type", &content_type(&outgoing.payload.headers))?;
    set("idempotency-key", outgoing.effect_key.as_str())?;
    set("oncehook-event-id", &outgoing.lease.event_id.to_string())?;
    set("oncehook-source", outgoing.source)?;
    set("oncehook-event-key", outgoing.event.key.as_str())?;
    if let Some(event_type) = &outgoing.event.event_type {
        set("oncehook-event-type", event_type)?;
    }
    set("oncehook-run", &outgoing.lease.run.to_string())?;
    set("oncehook-attempt", &outgoing.lease.attempt().to_string())?;
    set(
        "oncehook-correlation-id",
        &outgoing.event.correlation_id.to_string(),
    )?;
    let mut signatures: Vec<String> = Vec::new();
    // One time for all: the header that tells it is there once.
    let now = Timestamp::now();
    if let Some(signer) = &handler.signer {
        for (label, secret) in &target.secrets {
            let signed = signer
                .sign(
                    &outgoing.payload.body,
                    "",
                    outgoing.effect_key.as_str(),
                    secret,
                    now,
                )
                .map_err(|error| format!("secret {label:?} cannot sign: {error}"))?;
            for (name, value) in signed.headers {
                if name.eq_ignore_ascii_case("webhook-signature") {
                    signatures.push(value);
                } else if name.to_ascii_lowercase().starts_with("webhook-") {
                    set(&name, &value)?;
                }
            }
        }
    }
    if !signatures.is_empty() {
        set("webhook-signature", &signatures.join(" "))?;
    }
    Ok(headers)
}

/// The content type the event came with.
fn content_type(stored: &[u8]) -> String {
    let fields: Vec<(String, String)> = serde_json::from_slice(stored).unwrap_or_default();
    fields
        .into_iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        .map_or_else(|| "application/octet-stream".to_owned(), |(_, value)| value)
}

/// Percent-encodes everything that is not visible ASCII.
fn escaped(value: &str) -> String {
    value
        .bytes()
        .map(|byte| {
            if byte.is_ascii_graphic() && byte != b'%' {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of docs/handlers.md, every status there is.
    #[test]
    fn statuses_mean_what_the_table_says() {
        const NOT_DONE: [u16; 5] = [408, 409, 425, 429, 503];
        let asked = Some(Duration::from_secs(7));
        for status in 100..=999 {
            let verdict = of_status(status, asked);
            let retried = matches!(verdict, Verdict::Retry { after, .. } if after == asked);
            match status / 100 {
                2 => assert_eq!(verdict, Verdict::Done { resource: None }, "{status}"),
                5 => assert!(retried, "{status}"),
                _ if NOT_DONE.contains(&status) => assert!(retried, "{status}"),
                _ => assert!(matches!(verdict, Verdict::Permanent { .. }), "{status}"),
            }
            let busy = status / 100 == 5 || [408, 429].contains(&status);
            assert_eq!(shows_health(status), !busy, "{status}");
            // What the receiver may have done decides what on_unknown will mean.
            if let Verdict::Retry { error, .. } = verdict {
                let unknown = !NOT_DONE.contains(&status);
                assert_eq!(error.ends_with("result unknown"), unknown, "{status}");
            }
        }
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_date() {
        let now: Timestamp = "2026-12-02T06:00:00Z".parse().unwrap();
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(read("120"), Some(Duration::from_mins(2)));
        assert_eq!(
            read("Wed, 02 Dec 2026 06:01:00 GMT"),
            Some(Duration::from_mins(1))
        );
        assert_eq!(read("Wed, 02 Dec 2026 05:00:00 GMT"), None);
        assert_eq!(read("soon"), None);
    }

    #[test]
    fn a_date_to_retry_after_is_measured_by_the_receivers_clock() {
        let now: Timestamp = "2026-12-02T06:00:00Z".parse().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(DATE, "Wed, 02 Dec 2026 04:59:30 GMT".parse().unwrap());
        let until = "Wed, 02 Dec 2026 05:00:00 GMT".parse().unwrap();
        headers.insert(RETRY_AFTER, until);
        let half_a_minute = Some(Duration::from_secs(30));
        assert_eq!(retry_after(&headers, now), half_a_minute);
        headers.insert(DATE, "yesterday".parse().unwrap());
        assert_eq!(retry_after(&headers, now), None);
    }
}
