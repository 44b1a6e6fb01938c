//! What a request for an operation is told when it is not answered with a stored response.

use actix_web::http::StatusCode;

use crate::domain::operation::{KeyFault, Profile, State};

use super::problem::Problem;

pub(super) fn no_key(fault: KeyFault) -> Problem {
    let (code, title) = match fault {
        KeyFault::Missing => ("idempotency-key-missing", "Idempotency-Key is missing"),
        _ => (
            "idempotency-key-malformed",
            "Idempotency-Key not understood",
        ),
    };
    let detail = format!("{fault} Nothing was reserved.");
    Problem::with(StatusCode::BAD_REQUEST, code, title, detail)
}

pub(super) fn mismatch(profile: Profile) -> Problem {
    let status = match profile {
        Profile::Standard => StatusCode::CONFLICT,
        Profile::Ietf => StatusCode::UNPROCESSABLE_ENTITY,
    };
    Problem::fixed(
        status,
        "idempotency-key-mismatch",
        "Key used for another intent",
        "This Idempotency-Key names an earlier request with other content. That one stands as it is, and this one was recorded as a conflict and not carried out. A retry repeats the first content; a correction is a new intent and needs a new key.",
    )
}

pub(super) fn expired(state: State, result: Option<&'static str>) -> Problem {
    Problem::fixed(
        StatusCode::GONE,
        "idempotency-response-expired",
        "Response not kept any more",
        "This intent has ended, and its response is not kept any more. It was not carried out again. Its final state is in `state`; the status resource says what is known of it.",
    )
    .and("state", state.as_str())
    .and_some("result", result)
}

pub(super) const UNKNOWN: Problem = Problem::fixed(
    StatusCode::NOT_FOUND,
    "unknown-operation",
    "No such operation",
    "No operation of this name is configured here. [[operation]] in the configuration makes one.",
);

pub(super) const NOT_JSON_TYPE: Problem = Problem::fixed(
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    "not-json",
    "Operations are JSON",
    "Send Content-Type: application/json and one JSON text. Nothing was reserved.",
);

pub(super) const HEAD_TOO_LARGE: Problem = Problem::fixed(
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    "headers-too-large",
    "Headers too large",
    "Request line and header fields are longer than limits.headers allows. Nothing was reserved.",
);

pub(super) const REPEATED_NAMES: Problem = Problem::fixed(
    StatusCode::BAD_REQUEST,
    "body-repeats-names",
    "A member name twice",
    "An object of the body has two members of one name, and which of them counts is for nobody to guess. Nothing was reserved; mend it and send it again.",
);

pub(super) const IN_PROGRESS: Problem = Problem::fixed(
    StatusCode::CONFLICT,
    "idempotency-in-progress",
    "Under way",
    "Another request with this Idempotency-Key has begun the same intent, and it is under way. Send the same again later, with the same key; Location says where to ask for its state.",
);

pub(super) const NOT_RESERVED: Problem = Problem::fixed(
    StatusCode::SERVICE_UNAVAILABLE,
    "reserve-unavailable",
    "Not reserved",
    "The key could not be reserved, or nobody knows whether it was. Send the same again, with the same key: it is carried out once at most.",
);

pub(super) const NOT_READ: Problem = Problem::fixed(
    StatusCode::SERVICE_UNAVAILABLE,
    "reserve-unavailable",
    "State not known now",
    "The intent may be stored, and its state could not be read now. Send the same again, with the same key: it is carried out once at most.",
);
