//! Problem bodies (RFC 9457) with a stable `type`.
//!
//! The text teaches what to do and never repeats what the client sent.

use std::borrow::Cow;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use serde::Serialize;

use crate::domain::Refusal;

/// What went wrong, for the one who asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    status: StatusCode,
    /// Last part of the `type`; never changes its meaning.
    code: &'static str,
    title: &'static str,
    detail: Cow<'static, str>,
    /// Further members.
    more: Vec<(&'static str, &'static str)>,
}

impl Problem {
    pub(super) const NO_ROUTE: Self = Self::fixed(
        StatusCode::NOT_FOUND,
        "no-route",
        "Nothing here",
        "Webhooks go to /webhooks/{source} on the public listener, questions to /v1 on the API listener.",
    );

    pub(super) const UNAVAILABLE: Self = Self::fixed(
        StatusCode::SERVICE_UNAVAILABLE,
        "unavailable",
        "Not stored",
        "The request could not be made durable now. Nothing was acknowledged; send it again.",
    );

    pub(super) const CONFLICT: Self = Self::fixed(
        StatusCode::CONFLICT,
        "conflict",
        "Known event with other content",
        "An event with this id was stored before with other content. This copy was recorded as a conflict and will not be processed; sending it again cannot change that.",
    );

    pub(super) const fn fixed(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: &'static str,
    ) -> Self {
        Self {
            status,
            code,
            title,
            detail: Cow::Borrowed(detail),
            more: Vec::new(),
        }
    }

    /// With a text made for the occasion.
    pub(super) fn with(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: String,
    ) -> Self {
        Self {
            status,
            code,
            title,
            detail: Cow::Owned(detail),
            more: Vec::new(),
        }
    }

    /// With a further member.
    pub(super) fn and(mut self, name: &'static str, word: &'static str) -> Self {
        self.more.push((name, word));
        self
    }

    /// With a further member, if there is something to say.
    pub(super) fn and_some(self, name: &'static str, word: Option<&'static str>) -> Self {
        match word {
            Some(word) => self.and(name, word),
            None => self,
        }
    }

    /// What a sender may know of a refusal: every signature reason has the same bytes.
    pub(super) fn of_refusal(refusal: Refusal, status: StatusCode) -> Self {
        let (code, title, detail) = match refusal {
            Refusal::UnknownSource => (
                "unknown-source",
                "No such source",
                "No source of this name is configured here. Compare the address registered with the sender to the configured names.",
            ),
            Refusal::MethodNotAllowed => (
                "method-not-allowed",
                "Only POST",
                "Webhooks are sent to this address with POST.",
            ),
            Refusal::BodyTooLarge => (
                "body-too-large",
                "Body too large",
                "The body is longer than this receiver's limits.body allows. The rest was not read.",
            ),
            Refusal::BodyTimeout => (
                "body-timeout",
                "Body too slow",
                "The body did not arrive within this receiver's limits.body_time.",
            ),
            Refusal::BodyBroken => (
                "body-broken",
                "Body incomplete",
                "The body ended early, or its chunks are not in the form of HTTP.",
            ),
            Refusal::HeadersTooLarge => (
                "headers-too-large",
                "Headers too large",
                "Request line and header fields are longer than this receiver's limits.headers allows.",
            ),
            _ => (
                "signature",
                "Signature not accepted",
                "The request does not carry a signature that this source accepts. The reason stands in the receiver's log, not here.",
            ),
        };
        Self::fixed(status, code, title, detail)
    }

    /// The answer. A 503 carries `Retry-After`.
    pub(super) fn response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        response
            .content_type("application/problem+json")
            .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.insert_header((header::RETRY_AFTER, retry_after()));
        }
        response.body(self.body())
    }

    fn body(&self) -> String {
        #[derive(Serialize)]
        struct Wire<'a> {
            r#type: String,
            title: &'a str,
            status: u16,
            detail: &'a str,
            #[serde(flatten)]
            more: std::collections::BTreeMap<&'a str, &'a str>,
        }
        let wire = Wire {
            r#type: format!("urn:oncehook:problem:{}", self.code),
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            more: self.more.iter().copied().collect(),
        };
        // A struct of strings and a number always prints; an empty body would still be an answer.
        serde_json::to_string(&wire).unwrap_or_default()
    }
}

/// Seconds a sender should wait, spread so that they do not all come back at once.
fn retry_after() -> HeaderValue {
    HeaderValue::from(rand::random_range(1_u16..=5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_reason_has_one_body() {
        let bodies: Vec<_> = Refusal::ALL
            .into_iter()
            .filter(|refusal| refusal.is_signature())
            .map(|refusal| Problem::of_refusal(refusal, StatusCode::UNAUTHORIZED).body())
            .collect();
        assert!(bodies.len() > 3);
        assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn every_other_reason_has_its_own_type() {
        let mut types: Vec<_> = Refusal::ALL
            .into_iter()
            .filter(|refusal| !refusal.is_signature())
            .map(|refusal| Problem::of_refusal(refusal, StatusCode::BAD_REQUEST).code)
            .collect();
        assert!(!types.contains(&"signature"));
        let count = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!(types.len(), count);
    }

    #[test]
    fn the_body_is_a_problem_and_503_says_when_to_come_again() {
        let body: serde_json::Value = serde_json::from_str(&Problem::UNAVAILABLE.body()).unwrap();
        assert_eq!(body["type"], "urn:oncehook:problem:unavailable");
        assert_eq!(body["status"].to_string(), "503");
        for _ in 0..50 {
            let response = Problem::UNAVAILABLE.response();
            let seconds = response.headers().get(header::RETRY_AFTER).unwrap();
            let seconds: u16 = seconds.to_str().unwrap().parse().unwrap();
            assert!((1..=5).contains(&seconds));
        }
        let response = Problem::NO_ROUTE.response();
        assert!(response.headers().get(header::RETRY_AFTER).is_none());
        assert_eq!(
            response.headers().get(header::CONTENT_TYPE).unwrap(),
            "application/problem+json"
        );
    }
}
