//! The `http` kind: a signed POST with a stable effect key.
//!
//! # Source
//!
//! Signature headers: Standard Webhooks specification. `Idempotency-Key`: IETF draft
//! draft-ietf-httpapi-idempotency-key-header. `Retry-After`: RFC 9110 §10.2.3.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use serde::Deserialize;

use crate::domain::Probed;
use crate::provider::Provider;

use super::external::{Answered, Unknown};
use super::http_answer::{self, Says};
use super::{Answer, Delivered, HandlerError, HttpTarget, HttpUnknown};

/// Time to make a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest answer to a probe.
const PROBE_BYTES_MAX: usize = 64 * 1024;

/// Makes the calls of one handler.
pub(crate) struct Calls {
    client: reqwest::Client,
    target: HttpTarget,
    signer: Arc<dyn Provider>,
    /// The headers that the operation lists which it does; `None`: it handles webhooks.
    operation: Option<Vec<String>>,
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

impl Calls {
    pub(crate) fn new(
        client: reqwest::Client,
        target: HttpTarget,
        signer: Arc<dyn Provider>,
        operation: Option<Vec<String>>,
    ) -> Self {
        Self {
            client,
            target,
            signer,
            operation,
        }
    }

    /// Sends the event once; tells the answer, and whether the receiver works.
    pub(super) async fn send(&self, event: &Delivered) -> Answered {
        let headers = match self.headers(&event.effect_key, event, &event.body) {
            Ok(headers) => headers,
            Err(error) => return (Ok(Answer::Permanent(error)), None),
        };
        let sent = self
            .client
            .post(&self.target.url)
            .headers(headers)
            .body(event.body.to_vec())
            .send()
            .await;
        match sent {
            Ok(response) => {
                let status = response.status().as_u16();
                let after = retry_after(response.headers(), Timestamp::now());
                let says = http_answer::says(status);
                if let (Some(also), Says::Yes | Says::No) = (&self.operation, says) {
                    let kept = http_answer::kept(response, says, also).await;
                    let works = kept.is_some();
                    let answer = kept.ok_or_else(|| cut("the answer was cut: result unknown"));
                    return (answer, Some(works));
                }
                // Drained a little, so that the connection can be used again; the answer is known.
                tokio::spawn(tokio::time::timeout(
                    Duration::from_secs(1),
                    response.chunk_limited(),
                ));
                let answer = of_status(status, after).map_err(HandlerError::from);
                (answer, Some(shows_health(status)))
            }
            Err(error) if error.is_connect() => {
                let error = "not connected: the receiver got nothing".to_owned();
                (Ok(Answer::Retry(None, error)), Some(false))
            }
            // Without the URL: it may hold a token.
            Err(_) => {
                let unknown = cut("the connection was cut before an answer: result unknown");
                (Err(unknown), Some(false))
            }
        }
    }

    /// Asks whether the effect key was applied.
    pub(super) async fn probe(&self, event: &Delivered) -> Result<Probed, HandlerError> {
        let HttpUnknown::Probe(probe) = &self.target.on_unknown else {
            return Err("there is no probe".into());
        };
        let effect_key = &event.effect_key;
        // Signed under an id of its own: the signature of a question is none of a call.
        let headers = self.headers(&format!("probe_{effect_key}"), event, &[])?;
        let url = probe.url.replace("{effect_key}", effect_key);
        let request = if probe.post {
            self.client.post(url)
        } else {
            self.client.get(url)
        };
        let mut response = request
            .headers(headers)
            .send()
            .await
            // Without the URL: it may hold a token.
            .map_err(|_| "the probe was not answered")?;
        let status = response.status().as_u16();
        if status == 404 && probe.not_found_is_absent {
            return Ok(Probed::Absent);
        }
        if status != 200 {
            return Err(format!("HTTP {status} to the probe").into());
        }
        let most = match self.operation {
            Some(_) => http_answer::PROBE_BYTES_MAX,
            None => PROBE_BYTES_MAX,
        };
        let mut body = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|_| "the answer to the probe was cut")?
        {
            body.extend_from_slice(&chunk);
            if body.len() > most {
                return Err(format!(
                    "the answer to the probe is longer than {} KiB",
                    most / 1_024
                )
                .into());
            }
        }
        let found = found(&body);
        Ok(match &self.operation {
            Some(also) => http_answer::brought(found, &body, also),
            None => found,
        })
    }
}

fn cut(error: &str) -> HandlerError {
    let error = error.to_owned();
    Unknown { after: None, error }.into()
}

/// The answer to a probe. `unknown` and whatever is not understood mean the same.
#[derive(Debug, Deserialize)]
struct ProbeAnswer {
    state: String,
    result: Option<String>,
    resource: Option<String>,
    reason: Option<String>,
}

fn found(body: &[u8]) -> Probed {
    let unknown = |why: &str| Probed::Unknown {
        why: why.to_owned(),
    };
    // The parser's own words quote what it read.
    let Ok(answer) = serde_json::from_slice::<ProbeAnswer>(body) else {
        return unknown(
            "the answer to the probe is not {\"state\": \"applied\" | \"absent\" | \"unknown\"}",
        );
    };
    match (answer.state.as_str(), answer.result.as_deref()) {
        ("applied", None | Some("done")) => Probed::Applied {
            resource: answer.resource,
        },
        ("applied", Some("failed")) => Probed::Refused {
            reason: answer
                .reason
                .unwrap_or_else(|| "no reason given".to_owned()),
        },
        ("absent", None) => Probed::Absent,
        ("unknown", None) => Probed::Unknown {
            why: answer
                .reason
                .unwrap_or_else(|| "the receiver cannot tell".to_owned()),
        },
        _ => unknown("the answer to the probe has an unknown \"state\" or \"result\""),
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

/// What a status means. `Err`: the receiver may have done it or not. By 409, 425 and 429 it says that it
/// did not take the call; 408 and 5xx may come from a proxy that had passed the call on, with
/// `Retry-After` or without.
fn of_status(status: u16, after: Option<Duration>) -> Result<Answer, Unknown> {
    match status {
        200..=299 => Ok(Answer::Done),
        409 | 425 | 429 => Ok(Answer::Retry(after, format!("HTTP {status}: not done"))),
        408 | 500..=599 => Err(Unknown {
            after,
            error: format!("HTTP {status}: result unknown"),
        }),
        _ => Ok(Answer::Permanent(format!("HTTP {status}"))),
    }
}

/// Whether a receiver that answers so works. A refusal of one event (409, 422) says nothing
/// against it; 408, 429 and 5xx say that it cannot keep up or is down.
fn shows_health(status: u16) -> bool {
    !matches!(status, 408 | 429 | 500..=599)
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

impl Calls {
    /// `id` is what is signed, `body` the bytes that are.
    fn headers(&self, id: &str, event: &Delivered, body: &[u8]) -> Result<HeaderMap, String> {
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
        if !body.is_empty() {
            let given = event.content_type.as_deref();
            set("content-type", given.unwrap_or("application/octet-stream"))?;
        }
        set("idempotency-key", &event.effect_key)?;
        set("oncehook-event-id", &event.id.to_string())?;
        set("oncehook-source", &event.source)?;
        set("oncehook-event-key", &event.key)?;
        if let Some(event_type) = &event.event_type {
            set("oncehook-event-type", event_type)?;
        }
        set("oncehook-run", &event.run.to_string())?;
        set("oncehook-attempt", &event.attempt.to_string())?;
        set("oncehook-correlation-id", &event.correlation_id.to_string())?;
        let mut signatures: Vec<String> = Vec::new();
        // One time for all: the header that tells it is there once.
        let now = Timestamp::now();
        for (label, secret) in &self.target.secrets {
            let signed = self
                .signer
                .sign(body, "", id, secret, now)
                .map_err(|error| format!("secret {label:?} cannot sign: {error}"))?;
            for (name, value) in signed.headers {
                if name.eq_ignore_ascii_case("webhook-signature") {
                    signatures.push(value);
                } else if name.to_ascii_lowercase().starts_with("webhook-") {
                    set(&name, &value)?;
                }
            }
        }
        if !signatures.is_empty() {
            set("webhook-signature", &signatures.join(" "))?;
        }
        Ok(headers)
    }
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
        const NOT_DONE: [u16; 3] = [409, 425, 429];
        let asked = Some(Duration::from_secs(7));
        for status in 100..=999 {
            let verdict = of_status(status, asked);
            match status / 100 {
                2 => assert!(matches!(verdict, Ok(Answer::Done)), "{status}"),
                _ if NOT_DONE.contains(&status) => {
                    let Ok(Answer::Retry(after, error)) = verdict else {
                        panic!("{status}: {verdict:?}");
                    };
                    assert_eq!(after, asked, "{status}");
                    assert!(error.ends_with("not done"), "{error}");
                }
                _ if status == 408 || status / 100 == 5 => {
                    let unknown = verdict.expect_err("the receiver may have done it");
                    assert_eq!(unknown.after, asked, "{status}");
                    assert!(unknown.error.ends_with("result unknown"), "{unknown}");
                }
                _ => assert!(matches!(verdict, Ok(Answer::Permanent(_))), "{status}"),
            }
            let busy = status / 100 == 5 || [408, 429].contains(&status);
            assert_eq!(shows_health(status), !busy, "{status}");
        }
    }

    #[test]
    fn only_a_clear_answer_to_a_probe_says_anything() {
        let done = |resource: Option<&str>| Probed::Applied {
            resource: resource.map(str::to_owned),
        };
        let clear: [(&[u8], Probed); 5] = [
            (br#"{"state":"applied"}"#, done(None)),
            (
                br#"{"state":"applied","result":"done","resource":"pay_1","note":1}"#,
                done(Some("pay_1")),
            ),
            (
                br#"{"state":"applied","result":"failed","reason":"no cover"}"#,
                Probed::Refused {
                    reason: "no cover".into(),
                },
            ),
            (br#"{"state":"absent"}"#, Probed::Absent),
            (
                br#"{"state":"unknown","reason":"being done"}"#,
                Probed::Unknown {
                    why: "being done".into(),
                },
            ),
        ];
        for (body, expected) in clear {
            assert_eq!(found(body), expected, "{}", String::from_utf8_lossy(body));
        }
        for odd in [
            &b""[..],
            b"absent",
            b"{}",
            b"null",
            br#"{"state":null}"#,
            br#"{"state":"Absent"}"#,
            br#"{"state":"absent","result":"done"}"#,
            br#"{"state":"applied","result":"maybe"}"#,
            br#"{"state":["absent"]}"#,
        ] {
            let unknown = matches!(found(odd), Probed::Unknown { .. });
            assert!(unknown, "{}", String::from_utf8_lossy(odd));
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
