//! Answers that leave while the request's body is still arriving.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::web::{Bytes, Payload};
use actix_web::{HttpRequest, HttpResponse};

use super::problem::Problem;

/// The answer, together with the body that nobody will read.
///
/// actix drains a chunked body whose reader is gone, for as long as the sender goes on, to keep
/// the connection (`h1::dispatcher::should_close_for_unread_payload`). A reader that lives until
/// the answer is written makes it close instead. A request without a body keeps its connection.
struct Unread {
    answer: BoxBody,
    _payload: Payload,
}

impl MessageBody for Unread {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.answer.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.get_mut().answer).poll_next(context)
    }
}

/// Sends the answer now and closes the connection after it unless the body was at its end.
pub(super) fn without_reading(answer: HttpResponse, payload: Payload) -> HttpResponse {
    answer.map_body(|_, answer| {
        BoxBody::new(Unread {
            answer,
            _payload: payload,
        })
    })
}

/// 404 for every address that is none of ours.
pub(super) async fn not_found(_request: HttpRequest, payload: Payload) -> HttpResponse {
    without_reading(Problem::NO_ROUTE.response(), payload)
}
