//! What we take from a request's head: for the check, for the record, for the limit.

use std::net::IpAddr;

use actix_web::HttpRequest;
use actix_web::http::header;

use crate::provider::{Headers, NEVER_STORED};

/// Stored with every request when present.
const STORED: [&str; 9] = [
    "content-type",
    "content-encoding",
    "date",
    "request-id",
    "traceparent",
    "user-agent",
    "x-amzn-trace-id",
    "x-correlation-id",
    "x-request-id",
];

/// A query value that was there.
const MASK: &str = "***";

/// All fields, in order per name. actix has folded the names' letter case already.
pub(super) fn headers(request: &HttpRequest) -> Headers {
    request
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect()
}

/// Path and query as on the request line.
pub(super) fn target(request: &HttpRequest) -> &str {
    request
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str())
}

/// Bytes of the request line and the fields, separators included.
pub(super) fn head_bytes(request: &HttpRequest) -> usize {
    let line = request.method().as_str().len() + target(request).len() + "  HTTP/1.1\r\n".len();
    request
        .headers()
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len())
        .sum::<usize>()
        + line
}

/// The Content-Length. actix has refused requests where it is repeated or no number.
pub(super) fn declared_length(request: &HttpRequest) -> Option<u64> {
    let value = request.headers().get(header::CONTENT_LENGTH)?;
    value.to_str().ok()?.trim().parse().ok()
}

/// The other end of the connection; never what a header claims.
pub(super) fn peer(request: &HttpRequest) -> Option<IpAddr> {
    request.peer_addr().map(|address| address.ip())
}

/// The fields to keep, as a JSON array of `[name, value]`: the common ones and those the preset
/// names. What is not UTF-8 is kept with replacement characters.
pub(super) fn stored_headers(headers: &Headers, of_preset: &[String]) -> Vec<u8> {
    let kept: Vec<(&str, _)> = headers
        .iter()
        .filter(|(name, _)| is_stored(name, of_preset))
        .map(|(name, value)| (name, String::from_utf8_lossy(value)))
        .collect();
    // Pairs of strings always print.
    serde_json::to_vec(&kept).unwrap_or_else(|_| b"[]".to_vec())
}

fn is_stored(name: &str, of_preset: &[String]) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    !NEVER_STORED.into_iter().any(is)
        && (STORED.into_iter().any(is) || of_preset.iter().any(|other| is(other)))
}

/// The query with its values masked: some senders put a token there. A part without `=` may be
/// one as a whole, so nothing of it is kept.
pub(super) fn masked_query(query: &str) -> Option<String> {
    if query.is_empty() {
        return None;
    }
    let parts: Vec<_> = query
        .split('&')
        .map(|part| match part.split_once('=') {
            Some((name, _)) => format!("{name}={MASK}"),
            None => MASK.to_owned(),
        })
        .collect();
    Some(parts.join("&"))
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn f77_only_listed_headers_are_stored() {
        let headers: Headers = [
            ("content-type", "application/json"),
            ("authorization", "Bearer sk_live_1"),
            ("cookie", "session=2"),
            ("x-api-key", "key3"),
            ("stripe-signature", "t=1,v1=ab"),
            ("Stripe-Signature", "t=2,v1=cd"),
            ("x-other", "4"),
        ]
        .into_iter()
        .collect();
        let of_preset = ["stripe-signature", "authorization", "x-api-key"].map(str::to_owned);
        let stored = stored_headers(&headers, &of_preset);
        assert_eq!(
            String::from_utf8(stored).unwrap(),
            r#"[["content-type","application/json"],["stripe-signature","t=1,v1=ab"],["Stripe-Signature","t=2,v1=cd"]]"#
        );
    }

    #[test]
    fn a_value_that_is_no_text_is_stored_as_far_as_it_goes() {
        let headers: Headers = [("user-agent", b"caf\xe9".as_slice())]
            .into_iter()
            .collect();
        let stored = stored_headers(&headers, &[]);
        assert_eq!(
            String::from_utf8(stored).unwrap(),
            "[[\"user-agent\",\"caf\u{fffd}\"]]"
        );
    }

    #[test]
    fn f77_query_values_are_masked_and_names_kept() {
        for (query, masked) in [
            ("", None),
            ("token=s3cret&a=b=c", Some("token=***&a=***")),
            ("s3cret", Some("***")),
            ("a=&&=x", Some("a=***&***&=***")),
        ] {
            assert_eq!(masked_query(query).as_deref(), masked, "{query}");
        }
    }

    #[test]
    fn the_head_is_counted_as_sent() {
        let request = TestRequest::post()
            .uri("/webhooks/a?b=c")
            .insert_header(("x-a", "1"))
            .append_header(("x-a", "22"))
            .to_http_request();
        let sent = "POST /webhooks/a?b=c HTTP/1.1\r\nx-a: 1\r\nx-a: 22\r\n";
        assert_eq!(head_bytes(&request), sent.len());
        assert_eq!(target(&request), "/webhooks/a?b=c");
        assert_eq!(headers(&request).all("X-A").count(), 2);
    }
}
