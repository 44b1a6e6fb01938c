//! The stored answer of an operation.

use bytes::Bytes;

use crate::domain::{DecidedBy, Ending};

/// Longest body that is stored, in bytes.
pub const BODY_MAX: usize = 8 * 1_024 * 1_024;

/// Headers that are stored and replayed of every operation's answer, beside those that it lists.
pub const HEADERS: [&str; 5] = [
    "content-type",
    "content-encoding",
    "location",
    "etag",
    "link",
];

/// Headers that no operation may list: they are of one message, of one connection, or secrets.
const NEVER: [&str; 19] = [
    "age",
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "date",
    "idempotency-replayed",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "server",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "www-authenticate",
];

/// Whether an operation may list a header of this name, in lower case.
pub fn may_be_listed(name: &str) -> bool {
    is_name(name) && !NEVER.contains(&name)
}

/// Status, headers and body as they are stored and replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// 200 to 599.
    pub status: u16,
    /// Allow-listed headers, names in lower case, in the order given.
    pub headers: Vec<(String, String)>,
    /// The bytes.
    pub body: Bytes,
}

/// Why an answer cannot be stored; what the handler did must not be committed with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResponseFault {
    /// The body is longer than [`BODY_MAX`].
    #[error("the answer's body is longer than 8 MiB")]
    TooLong,
    /// Not a final status code.
    #[error("the answer's status is not one of 200 to 599")]
    Status,
    /// A header cannot be sent.
    #[error("a header of the answer is not one that HTTP can carry")]
    Header,
    /// 204, 205 and 304 have no body.
    #[error("an answer of this status has no body")]
    Body,
}

impl Response {
    /// An answer with a JSON body.
    pub fn json(status: u16, body: impl Into<Bytes>) -> Self {
        Self::of(status, "application/json", body)
    }

    fn of(status: u16, media: &str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), media.to_owned())],
            body: body.into(),
        }
    }

    /// The answer as it is stored: header names in lower case, and only those of [`HEADERS`] and `also`.
    ///
    /// # Errors
    ///
    /// [`ResponseFault`]: it cannot be stored, or not be sent.
    pub fn checked(mut self, also: &[String]) -> Result<Self, ResponseFault> {
        if !(200..=599).contains(&self.status) {
            return Err(ResponseFault::Status);
        }
        if self.body.len() > BODY_MAX {
            return Err(ResponseFault::TooLong);
        }
        if matches!(self.status, 204 | 205 | 304) && !self.body.is_empty() {
            return Err(ResponseFault::Body);
        }
        for (name, value) in &mut self.headers {
            name.make_ascii_lowercase();
            if !is_name(name) || !is_value(value) {
                return Err(ResponseFault::Header);
            }
        }
        self.headers
            .retain(|(name, _)| HEADERS.contains(&name.as_str()) || also.contains(name));
        Ok(self)
    }

    /// As [`Response::checked`]; what cannot be stored is replaced by what says so.
    #[must_use]
    pub fn fitted(self, also: &[String]) -> Self {
        match self.clone().checked(also) {
            Ok(response) => response,
            Err(fault) => self.in_place_of(fault, also),
        }
    }

    /// In place of an answer that came from outside and cannot be stored as it is. What it tells of is
    /// done, so something is stored: its status and headers if they can be, and a body that says so.
    #[must_use]
    pub fn in_place_of(self, fault: ResponseFault, also: &[String]) -> Self {
        let status = if (200..=599).contains(&self.status) {
            self.status
        } else {
            502
        };
        let problem = object(&[
            ("type", Some("urn:oncehook:problem:response-not-kept")),
            ("title", Some("The answer is not kept")),
            (
                "detail",
                Some(&format!(
                    "The operation has ended with status {status}, but {fault}, so that its bytes are not kept. Ask for what it made by its own address."
                )),
            ),
        ]);
        let mut kept = Self {
            body: Bytes::new(),
            ..self
        };
        kept.headers.retain(|(name, value)| {
            is_name(name)
                && is_value(value)
                // They are of the bytes that are not kept.
                && !["content-type", "content-encoding", "etag"].contains(&name.to_ascii_lowercase().as_str())
        });
        kept.status = status;
        if !matches!(status, 204 | 205 | 304) {
            let media = "application/problem+json".to_owned();
            kept.headers.insert(0, ("content-type".to_owned(), media));
            kept.body = problem.into();
        }
        let plain = Self::of(status, "application/json", "{}");
        kept.checked(also).unwrap_or(plain)
    }

    /// The answer to an operation whose handler gave none: decided without the backend's own bytes, or by
    /// a handler that has nothing to say. A pure function of what is stored, so it is the same to all.
    pub fn made_up(
        operation: &str,
        ending: Ending,
        by: DecidedBy,
        resource: Option<&str>,
        external_id: Option<&str>,
    ) -> Self {
        let (status, state, title) = match ending {
            Ending::Succeeded | Ending::Skipped => (200, "completed", None),
            Ending::Failed => (422, "completed", Some("The operation was refused")),
            Ending::Dead => (500, "failed", Some("The operation failed")),
            Ending::Cancelled => (500, "failed", Some("The operation was cancelled")),
        };
        let members = [
            (
                "type",
                title.map(|_| "urn:oncehook:problem:operation-failed"),
            ),
            ("title", title),
            ("operation", Some(operation)),
            ("state", Some(state)),
            ("result", Some(ending.as_str())),
            ("resource", resource),
            ("external_id", external_id),
            ("decided_by", Some(by.as_str())),
        ];
        let media = match title {
            Some(_) => "application/problem+json",
            None => "application/json",
        };
        Self::of(status, media, object(&members))
    }
}

/// A JSON object of the members that are there.
fn object(members: &[(&str, Option<&str>)]) -> String {
    let there = members.iter().filter_map(|(name, value)| {
        // A text is always a JSON string.
        let value = serde_json::to_string((*value)?).ok()?;
        Some(format!("\"{name}\":{value}"))
    });
    format!("{{{}}}", there.collect::<Vec<_>>().join(","))
}

fn is_name(name: &str) -> bool {
    (1..=200).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn is_value(value: &str) -> bool {
    value.len() <= 8_002
        && value.bytes().all(|b| matches!(b, b' '..=b'~'))
        && !value.starts_with(' ')
        && !value.ends_with(' ')
}

/// What a handler tells the client of an operation, beside its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// The answer; `None`: one is made up.
    pub response: Option<Response>,
    /// The id that the outside world gave it.
    pub external_id: Option<String>,
}

impl Told {
    /// What is missing here, of another.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            response: self.response.or(other.response),
            external_id: self.external_id.or(other.external_id),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn response(status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Response {
        let headers = headers
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        Response {
            status,
            headers: headers.collect(),
            body: body.into(),
        }
    }

    #[test]
    fn only_listed_headers_are_kept_in_their_order() {
        let given = [
            ("ETag", "\"1\""),
            ("Date", "today"),
            ("X-Order", "7"),
            ("Content-Type", "text/csv"),
            ("Set-Cookie", "a=b"),
        ];
        let kept = response(201, &given, "a,b")
            .checked(&["x-order".to_owned()])
            .unwrap();
        let expected = [
            ("etag", "\"1\""),
            ("x-order", "7"),
            ("content-type", "text/csv"),
        ];
        assert_eq!(kept, response(201, &expected, "a,b"));
    }

    #[test]
    fn what_cannot_be_stored_or_sent_is_a_fault() {
        let long = || vec![b'x'; BODY_MAX + 1];
        let line = [("location", "/a\r\nset-cookie: a=b")];
        let name = [("a b", "c")];
        let cases = [
            (response(199, &[], ""), ResponseFault::Status),
            (response(600, &[], ""), ResponseFault::Status),
            (response(200, &[], long()), ResponseFault::TooLong),
            (response(204, &[], "x"), ResponseFault::Body),
            (response(200, &line, ""), ResponseFault::Header),
            (response(200, &name, ""), ResponseFault::Header),
        ];
        for (given, fault) in cases {
            assert_eq!(given.clone().checked(&[]), Err(fault));
            let other = given.in_place_of(fault, &[]);
            assert_eq!(other.clone().checked(&[]), Ok(other));
        }
        assert!(
            response(200, &[], vec![b'x'; BODY_MAX])
                .checked(&[])
                .is_ok()
        );
    }

    #[test]
    fn no_header_of_a_connection_or_a_secret_can_be_listed() {
        assert!(may_be_listed("x-order"));
        for name in ["set-cookie", "date", "transfer-encoding", "a b", ""] {
            assert!(!may_be_listed(name), "{name:?}");
        }
    }

    #[test]
    fn a_made_up_answer_is_pinned_because_clients_read_it() {
        let made = Response::made_up(
            "pay",
            Ending::Succeeded,
            DecidedBy::Operator,
            Some("o\"7"),
            None,
        );
        let body = r#"{"operation":"pay","state":"completed","result":"succeeded","resource":"o\"7","decided_by":"operator"}"#;
        assert_eq!(made, Response::json(200, body));
        let made = Response::made_up("pay", Ending::Dead, DecidedBy::Handler, None, None);
        let body = r#"{"type":"urn:oncehook:problem:operation-failed","title":"The operation failed","operation":"pay","state":"failed","result":"dead","decided_by":"handler"}"#;
        assert_eq!((made.status, made.body), (500, body.into()));
    }

    proptest! {
        // Whatever comes from outside, something is stored, and storing it again changes nothing.
        #[test]
        fn an_answer_from_outside_is_always_kept_somehow(
            status in 0_u16..700, name in "[ -~]{0,6}", value in "\\PC{0,6}", body in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let given = response(status, &[(&name, &value), ("location", "/a")], body);
            let kept = given.fitted(&[]);
            prop_assert_eq!(kept.clone().checked(&[]), Ok(kept));
        }
    }
}
