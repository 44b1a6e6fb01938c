//! The answers of a backend that does an operation: read whole, kept byte by byte.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use reqwest::header::HeaderMap;

use crate::domain::Probed;
use crate::domain::json::{Document, Kind, Value};
use crate::domain::operation::{BODY_MAX, Response, ResponseFault};

use super::Answer;

/// Longest answer to a probe that may bring a response along: one of [`BODY_MAX`] in base64, and some more.
pub(super) const PROBE_BYTES_MAX: usize = 2 * BODY_MAX;

/// Header by which a backend names what it made; without it, that is its `Location`.
const RESOURCE: &str = "oncehook-resource";
/// Header by which a backend tells the id that the outside world gave it.
const EXTERNAL_ID: &str = "oncehook-external-id";

/// What a status says of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// It is done.
    Yes,
    /// The business says no, for good.
    No,
    /// What it says of a webhook too: not done, not known, or never.
    AsOfWebhooks,
}

/// The table of docs/handlers.md. By 401 and 407 a backend refuses us, not the intent.
pub(super) fn says(status: u16) -> Says {
    match status {
        200..=299 => Says::Yes,
        401 | 407 | 408 | 409 | 425 | 429 => Says::AsOfWebhooks,
        400..=499 => Says::No,
        _ => Says::AsOfWebhooks,
    }
}

/// Reads an answer whole and keeps it. `None`: it was cut, so nobody knows what it would have said.
pub(super) async fn kept(
    mut answer: reqwest::Response,
    says: Says,
    also: &[String],
) -> Option<Answer> {
    let status = answer.status().as_u16();
    let headers = headers(answer.headers());
    let named = |name: &str| {
        let found = headers.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.clone())
    };
    let resource = named(RESOURCE).or_else(|| named("location"));
    let external_id = named(EXTERNAL_ID);
    let mut body = BytesMut::new();
    while body.len() <= BODY_MAX {
        match answer.chunk().await.ok()? {
            Some(chunk) => body.extend_from_slice(&chunk),
            None => break,
        }
    }
    let too_long = body.len() > BODY_MAX;
    let response = Response {
        status,
        headers,
        body: if too_long {
            Bytes::new()
        } else {
            body.freeze()
        },
    };
    let response = if too_long {
        response.in_place_of(ResponseFault::TooLong, also)
    } else {
        response.fitted(also)
    };
    let answer = match (says, resource) {
        (Says::Yes, Some(resource)) => Answer::DoneWith(resource),
        (Says::Yes, None) => Answer::Done,
        _ => Answer::Failed(format!("HTTP {status}")),
    };
    let answer = answer.with_response(response);
    Some(match external_id {
        Some(id) => answer.with_external_id(id),
        None => answer,
    })
}

/// Those that are text; the rest is nothing that could be replayed.
fn headers(given: &HeaderMap) -> Vec<(String, String)> {
    let text = given.iter().filter_map(|(name, value)| {
        let value = value.to_str().ok()?;
        Some((name.as_str().to_owned(), value.to_owned()))
    });
    text.collect()
}

/// What an answer to a probe brings along for the client of the operation: `external_id`, and `response` with
/// `status`, `headers` and one of `body` (any JSON, kept as it is written), `body_text` and `body_base64`.
pub(super) fn brought(found: Probed, body: &[u8], also: &[String]) -> Probed {
    let Ok(document) = Document::parse(body) else {
        return found;
    };
    let text = |pointer: &str| document.pointer(pointer).and_then(|value| value.string());
    let found = match text("/external_id") {
        Some(id) => found.with_external_id(id),
        None => found,
    };
    let refused = matches!(found, Probed::Refused { .. });
    let response = document
        .pointer("/response")
        .and_then(|value| response(value, if refused { 422 } else { 200 }));
    match response {
        Some(response) => found.with_response(response.fitted(also)),
        None => found,
    }
}

fn response(value: Value<'_>, otherwise: u16) -> Option<Response> {
    if value.kind() != Kind::Object {
        return None;
    }
    let status = match value.pointer("/status") {
        Some(status) => status.number()?.parse().ok()?,
        None => otherwise,
    };
    let mut headers = Vec::new();
    if let Some(given) = value.pointer("/headers") {
        for (name, value) in given.members() {
            headers.push((name.to_ascii_lowercase(), value.string()?.into_owned()));
        }
    }
    let (body, media) = if let Some(json) = value.pointer("/body") {
        let body = Bytes::copy_from_slice(json.raw().as_bytes());
        (body, Some("application/json"))
    } else if let Some(text) = value.pointer("/body_text") {
        let text = text.string()?.into_owned();
        (text.into(), Some("text/plain; charset=utf-8"))
    } else if let Some(text) = value.pointer("/body_base64") {
        let bytes = STANDARD.decode(text.string()?.as_bytes()).ok()?;
        (bytes.into(), Some("application/octet-stream"))
    } else {
        (Bytes::new(), None)
    };
    let typed = headers.iter().any(|(name, _)| name == "content-type");
    if let Some(media) = media.filter(|_| !typed) {
        headers.push(("content-type".to_owned(), media.to_owned()));
    }
    Some(Response {
        status,
        headers,
        body,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_business_no_is_final_among_4xx() {
        let no: Vec<u16> = (100..600).filter(|s| says(*s) == Says::No).collect();
        let others = [401, 407, 408, 409, 425, 429];
        let expected: Vec<u16> = (400..500).filter(|s| !others.contains(s)).collect();
        assert_eq!(no, expected);
        let yes: Vec<u16> = (100..600).filter(|s| says(*s) == Says::Yes).collect();
        assert_eq!(yes, (200..300).collect::<Vec<_>>());
    }

    fn applied() -> Probed {
        Probed::Applied { resource: None }
    }

    fn told(body: &str) -> (Option<Response>, Option<String>) {
        let (found, told) = brought(applied(), body.as_bytes(), &[]).split();
        assert_eq!(found, applied());
        (told.response, told.external_id)
    }

    #[test]
    fn a_probe_brings_the_answer_byte_for_byte() {
        let body = r#"{"state":"applied","external_id":"pi_1","response":{"status":201,"headers":{"Location":"/7","Date":"x"},"body": {"b": 1.0,  "a":"\u00e9"} }}"#;
        let (response, external_id) = told(body);
        let response = response.unwrap();
        assert_eq!(response.body, r#"{"b": 1.0,  "a":"\u00e9"}"#);
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [
            header("location", "/7"),
            header("content-type", "application/json"),
        ];
        assert_eq!(
            (response.status, response.headers),
            (201, expected.to_vec())
        );
        assert_eq!(external_id.as_deref(), Some("pi_1"));
        let (response, _) =
            told(r#"{"response":{"headers":{"content-type":"image/png"},"body_base64":"AAEC"}}"#);
        let response = response.unwrap();
        assert_eq!(response.body.as_ref(), [0, 1, 2]);
        assert_eq!(response.headers, [header("content-type", "image/png")]);
    }

    #[test]
    fn a_probe_that_brings_nothing_readable_still_says_what_it_says() {
        for body in [
            "{}",
            r#"{"response":"x"}"#,
            r#"{"response":{"status":"201"}}"#,
            r#"{"response":{"body_base64":"*"}}"#,
            r#"{"response":{"headers":{"a":1}}}"#,
        ] {
            assert_eq!(told(body).0, None, "{body}");
        }
    }
}
