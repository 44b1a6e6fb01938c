//! Why a request was refused.

/// Every reason for which a request is not accepted.
///
/// Each has a stable code, used in the log, in the metric and in `rejected`. The sender sees one
/// body for every signature reason; only the operator sees which it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// A header or field that the check needs is absent or empty.
    MissingSignature,
    /// Present, but wrong prefix, encoding, length, version, or no number where a time is due.
    MalformedSignature,
    /// Well-formed and does not match any living secret.
    BadSignature,
    /// Signature right, older than the tolerance.
    TimestampTooOld,
    /// Signature right, further ahead than the tolerance.
    TimestampTooNew,
    /// The body cannot be read where reading is needed to verify.
    MalformedBody,
    /// No source has this name.
    UnknownSource,
    /// The method is not POST.
    MethodNotAllowed,
    /// The body is longer than `limits.body`.
    BodyTooLarge,
    /// The body did not arrive within `limits.body_time`.
    BodyTimeout,
    /// The client sent broken HTTP or closed before the end of the body.
    BodyBroken,
    /// The headers are larger than `limits.headers`.
    HeadersTooLarge,
}

impl Refusal {
    /// Every reason, for metrics and documentation.
    pub const ALL: [Self; 12] = [
        Self::MissingSignature,
        Self::MalformedSignature,
        Self::BadSignature,
        Self::TimestampTooOld,
        Self::TimestampTooNew,
        Self::MalformedBody,
        Self::UnknownSource,
        Self::MethodNotAllowed,
        Self::BodyTooLarge,
        Self::BodyTimeout,
        Self::BodyBroken,
        Self::HeadersTooLarge,
    ];

    /// Stable code for logs, metrics and `rejected`.
    pub fn code(self) -> &'static str {
        match self {
            Self::MissingSignature => "missing_signature",
            Self::MalformedSignature => "malformed_signature",
            Self::BadSignature => "bad_signature",
            Self::TimestampTooOld => "timestamp_too_old",
            Self::TimestampTooNew => "timestamp_too_new",
            Self::MalformedBody => "malformed_body",
            Self::UnknownSource => "unknown_source",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::BodyTooLarge => "body_too_large",
            Self::BodyTimeout => "body_timeout",
            Self::BodyBroken => "body_broken",
            Self::HeadersTooLarge => "headers_too_large",
        }
    }

    /// HTTP status unless the preset's sender needs another one.
    pub fn status(self) -> u16 {
        match self {
            Self::MissingSignature
            | Self::MalformedSignature
            | Self::BadSignature
            | Self::TimestampTooOld
            | Self::TimestampTooNew
            | Self::MalformedBody => 401,
            Self::UnknownSource => 404,
            Self::MethodNotAllowed => 405,
            Self::BodyTooLarge => 413,
            Self::BodyTimeout => 408,
            Self::BodyBroken => 400,
            Self::HeadersTooLarge => 431,
        }
    }

    /// Whether it is one of the signature reasons, which share one answer.
    pub fn is_signature(self) -> bool {
        self.status() == 401
    }

    /// One sentence on the remedy, for the operator.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::MissingSignature => {
                "the signature header or field is absent: is a proxy dropping it, or is the sender not signing?"
            }
            Self::MalformedSignature => {
                "the signature is not in this provider's form: is the right provider preset configured?"
            }
            Self::BadSignature => {
                "no configured secret made this signature: wrong endpoint's secret, test for live, or a body changed on the way"
            }
            Self::TimestampTooOld => {
                "the signed time lies outside the tolerance: check both clocks, or a captured request was sent again"
            }
            Self::TimestampTooNew => {
                "the signed time lies in the future beyond the tolerance: check both clocks"
            }
            Self::MalformedBody => {
                "the signature lies inside the body, and the body cannot be read"
            }
            Self::UnknownSource => {
                "no source has this name: check the URL registered with the provider"
            }
            Self::MethodNotAllowed => "webhooks are sent with POST",
            Self::BodyTooLarge => {
                "raise limits.body if the provider really sends bodies of this size"
            }
            Self::BodyTimeout => "the body did not arrive within limits.body_time",
            Self::BodyBroken => "the request was not complete HTTP",
            Self::HeadersTooLarge => "raise limits.headers if the sender really needs it",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique() {
        let mut codes: Vec<_> = Refusal::ALL.iter().map(|r| r.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Refusal::ALL.len());
    }
}
