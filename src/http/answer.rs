//! A receipt becomes the sender's answer. Runs after the commit, so nothing in it can fail.

use actix_web::HttpResponse;
use actix_web::http::header::HeaderName;
use actix_web::http::{StatusCode, header};

use crate::domain::Refusal;
use crate::ingest::{Fate, Receipt};
use crate::provider::{OnConflict, Provider, Reply, Source};

use super::problem::Problem;

/// Set when the answer repeats an earlier one.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The answer to a request whose items are durable.
///
/// `refused` is the first item's refusal where an item failed its own signature: the others are
/// stored, and the sender is asked to come again with the whole batch.
pub(super) fn to(source: &Source, receipt: &Receipt, refused: Option<Refusal>) -> HttpResponse {
    if let Some(refusal) = refused {
        return refusal_answer(source.provider.as_ref(), refusal);
    }
    let conflict = receipt
        .items
        .iter()
        .any(|(_, fate)| *fate == Fate::Conflict);
    if conflict && source.on_conflict == OnConflict::Reject {
        return Problem::CONFLICT.response();
    }
    let reply = source
        .provider
        .acknowledge()
        .unwrap_or_else(|| own_reply(receipt));
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    let mut response = HttpResponse::build(status);
    response
        .insert_header((header::CONTENT_TYPE, reply.content_type))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"));
    if is_replay(receipt) {
        response.insert_header((REPLAYED, "true"));
    }
    response.body(reply.body)
}

/// The answer to a refused signature: one body for every reason.
pub(super) fn refusal_answer(provider: &dyn Provider, refusal: Refusal) -> HttpResponse {
    let wanted = if refusal.is_signature() {
        provider.refusal_status(refusal)
    } else {
        refusal.status()
    };
    // A preset that names no status at all still refuses.
    let status = StatusCode::from_u16(wanted).unwrap_or(StatusCode::UNAUTHORIZED);
    Problem::of_refusal(refusal, status).response()
}

/// Whether everything was known before.
pub(super) fn is_replay(receipt: &Receipt) -> bool {
    !receipt.items.is_empty() && receipt.items.iter().all(|(_, fate)| *fate != Fate::New)
}

/// `{"event_id":"…"}` for one item, `{"event_ids":[…]}` otherwise. Written by hand, since it
/// must not fail: a UUID needs no escapes.
fn own_reply(receipt: &Receipt) -> Reply {
    let body = match receipt.items.as_slice() {
        [(id, _)] => format!(r#"{{"event_id":"{id}"}}"#),
        items => {
            let ids: Vec<_> = items.iter().map(|(id, _)| format!(r#""{id}""#)).collect();
            format!(r#"{{"event_ids":[{}]}}"#, ids.join(","))
        }
    };
    Reply {
        status: 200,
        content_type: "application/json",
        body: body.into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use actix_web::body::to_bytes;
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::*;
    use crate::domain::{Digest, Item, Secret, SecretText};
    use crate::provider::{Request, SettingError, SignedRequest, Verified};

    /// Answers as configured; checks nothing.
    #[derive(Debug, Default)]
    struct Dialect {
        acknowledge: Option<&'static str>,
        refusal_status: Option<u16>,
    }

    impl Provider for Dialect {
        fn name(&self) -> &'static str {
            "dialect"
        }
        fn key(&self, _: &SecretText, _: bool) -> Result<Vec<u8>, SettingError> {
            Ok(Vec::new())
        }
        fn verify(&self, _: &Request<'_>, _: &[Secret], _: Timestamp) -> Result<Verified, Refusal> {
            Err(Refusal::BadSignature)
        }
        fn unwrap(&self, _: &Request<'_>, _: &Verified) -> Vec<Item> {
            Vec::new()
        }
        fn comparable(&self, _: i16, _: &[u8]) -> Option<Digest> {
            None
        }
        fn recipe(&self) -> String {
            String::new()
        }
        fn acknowledge(&self) -> Option<Reply> {
            self.acknowledge.map(|text| Reply {
                status: 202,
                content_type: "text/plain",
                body: text.into(),
            })
        }
        fn refusal_status(&self, refusal: Refusal) -> u16 {
            self.refusal_status.unwrap_or(refusal.status())
        }
        fn sign(
            &self,
            _: &[u8],
            _: &str,
            _: &str,
            _: &SecretText,
            _: Timestamp,
        ) -> Result<SignedRequest, SettingError> {
            Err(SettingError(String::new()))
        }
        fn sample(&self, _: &str, _: &str, _: Timestamp) -> Option<Vec<u8>> {
            None
        }
        fn sample_types(&self) -> Vec<&'static str> {
            Vec::new()
        }
        fn stored_headers(&self) -> Vec<String> {
            Vec::new()
        }
    }

    fn source(provider: Dialect, on_conflict: OnConflict) -> Source {
        Source {
            name: "test".into(),
            was: None,
            provider: Arc::new(provider),
            secrets: Vec::new(),
            accept_modes: None,
            on_conflict,
        }
    }

    fn receipt(fates: &[Fate]) -> Receipt {
        let items = fates.iter().zip(1..).map(|(f, n)| (Uuid::from_u128(n), *f));
        Receipt {
            items: items.collect(),
        }
    }

    /// Status, body, whether it says that it repeats.
    async fn seen(response: HttpResponse) -> (u16, String, bool) {
        let replayed = response.headers().contains_key(REPLAYED);
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body()).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap(), replayed)
    }

    const ONE: &str = r#"{"event_id":"00000000-0000-0000-0000-000000000001"}"#;
    const TWO: &str = r#"{"event_ids":["00000000-0000-0000-0000-000000000001","00000000-0000-0000-0000-000000000002"]}"#;

    #[actix_web::test]
    async fn a_duplicate_gets_the_identical_body_and_a_header() {
        let source = source(Dialect::default(), OnConflict::Ack);
        for (fates, body, replayed) in [
            (&[Fate::New][..], ONE, false),
            (&[Fate::Duplicate], ONE, true),
            (&[Fate::Conflict], ONE, true),
            (&[Fate::New, Fate::New], TWO, false),
            (&[Fate::Duplicate, Fate::New], TWO, false),
            (&[Fate::Duplicate, Fate::Duplicate], TWO, true),
            (&[], r#"{"event_ids":[]}"#, false),
        ] {
            let answer = seen(to(&source, &receipt(fates), None)).await;
            assert_eq!(answer, (200, body.to_owned(), replayed), "{fates:?}");
        }
    }

    #[actix_web::test]
    async fn a_dialect_replaces_the_body_and_keeps_the_header() {
        let dialect = Dialect {
            acknowledge: Some("[accepted]"),
            ..Dialect::default()
        };
        let source = source(dialect, OnConflict::Ack);
        let answer = seen(to(&source, &receipt(&[Fate::Duplicate]), None)).await;
        assert_eq!(answer, (202, "[accepted]".to_owned(), true));
    }

    #[actix_web::test]
    async fn a_conflict_is_409_only_where_the_source_says_so() {
        let rejecting = source(Dialect::default(), OnConflict::Reject);
        let fates = receipt(&[Fate::New, Fate::Conflict]);
        let (status, body, replayed) = seen(to(&rejecting, &fates, None)).await;
        assert_eq!((status, replayed), (409, false));
        assert!(body.contains("urn:oncehook:problem:conflict"));
        let known = seen(to(&rejecting, &receipt(&[Fate::Duplicate]), None)).await;
        assert_eq!(known.0, 200);
    }

    #[actix_web::test]
    async fn f26_a_batch_with_a_refused_item_is_not_acknowledged() {
        let dialect = Dialect {
            acknowledge: Some("[accepted]"),
            ..Dialect::default()
        };
        let source = source(dialect, OnConflict::Ack);
        let answer = to(&source, &receipt(&[Fate::New]), Some(Refusal::BadSignature));
        let (status, body, _) = seen(answer).await;
        assert_eq!(status, 401);
        assert!(!body.contains("accepted]"));
    }

    #[actix_web::test]
    async fn a_presets_refusal_status_is_used_for_signatures_only() {
        let dialect = Dialect {
            refusal_status: Some(498),
            ..Dialect::default()
        };
        for (refusal, status) in [
            (Refusal::BadSignature, 498),
            (Refusal::MissingSignature, 498),
            (Refusal::BodyTooLarge, 413),
            (Refusal::BodyTimeout, 408),
        ] {
            assert_eq!(seen(refusal_answer(&dialect, refusal)).await.0, status);
        }
    }
}
