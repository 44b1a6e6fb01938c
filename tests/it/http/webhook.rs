//! What a sender sees.

use std::time::Duration;

use tokio::time::sleep;

use super::provider::signature;
use super::wire::{Wire, answers, chunked, status};
use super::{BODY_BYTES, body_of, event, header, signed_fields, start};

/// A signed event of exactly this many bytes.
fn sized(id: &str, bytes: usize) -> String {
    let short = format!(r#"{{"id":"{id}","pad":""}}"#);
    format!(
        r#"{{"id":"{id}","pad":"{}"}}"#,
        "a".repeat(bytes - short.len())
    )
}

#[tokio::test]
async fn a_duplicate_gets_the_identical_answer_and_says_so() {
    let service = start().await;
    let first = service.post("plain", &event("evt_1")).await;
    assert_eq!(status(&first), 200);
    assert_eq!(header(&first, "Idempotency-Replayed"), None);
    assert_eq!(header(&first, "Content-Type"), Some("application/json"));
    let again = service.post("plain", &event("evt_1")).await;
    assert_eq!(header(&again, "Idempotency-Replayed"), Some("true"));
    assert_eq!((status(&again), body_of(&again)), (200, body_of(&first)));
    let ids = [&first, &again].map(|answer| header(answer, "Oncehook-Request-Id"));
    assert!(ids[0].is_some() && ids[0] != ids[1], "{ids:?}");
    service.stop().await;
}

#[tokio::test]
async fn several_items_are_answered_as_a_list_and_none_as_an_empty_one() {
    let service = start().await;
    let two = format!("[{},{}]", event("evt_1"), event("evt_2"));
    let answer = service.post("plain", &two).await;
    let ids = body_of(&answer);
    assert!(ids.starts_with(r#"{"event_ids":[""#), "{ids}");
    let mixed = format!("[{},{}]", event("evt_2"), event("evt_3"));
    let answer = service.post("plain", &mixed).await;
    assert_eq!(header(&answer, "Idempotency-Replayed"), None);
    let answer = service.post("plain", "[]").await;
    assert_eq!(body_of(&answer), r#"{"event_ids":[]}"#);
    service.stop().await;
}

#[tokio::test]
async fn a_dialect_has_its_own_words() {
    let service = start().await;
    for replayed in [None, Some("true")] {
        let answer = service.post("dialect", &event("evt_1")).await;
        assert_eq!((status(&answer), body_of(&answer)), (200, "[accepted]"));
        assert_eq!(header(&answer, "Idempotency-Replayed"), replayed);
    }
    let mut wire = Wire::open(service.public).await;
    wire.head("/webhooks/dialect", "Content-Length: 0\r\n")
        .await;
    assert_eq!(status(&wire.answer().await), 498);
    service.stop().await;
}

#[tokio::test]
async fn a_conflict_is_200_or_409_as_the_source_says() {
    let service = start().await;
    let other = r#"{"id":"evt_1","type":"order.paid","amount":2}"#;
    for (source, expected) in [("plain", 200), ("rejecting", 409)] {
        let first = service.post(source, &event("evt_1")).await;
        let conflict = service.post(source, other).await;
        assert_eq!(status(&conflict), expected);
        if expected == 200 {
            assert_eq!(body_of(&conflict), body_of(&first));
        }
        let known = service.post(source, &event("evt_1")).await;
        assert_eq!(status(&known), 200, "the first copy stays good");
    }
    service.stop().await;
}

#[tokio::test]
async fn f3_f7_every_signature_reason_has_one_answer_and_the_connection_serves_on() {
    let service = start().await;
    let body = event("evt_1");
    let good = signature(body.as_bytes());
    let mut wire = Wire::open(service.public).await;
    let mut bodies = Vec::new();
    for fields in [
        String::new(),
        "X-Signature: \r\n".to_owned(),
        "X-Signatur: abc\r\n".to_owned(),
        format!("X-Signature: {}\r\n", "0".repeat(64)),
        format!("X-Signature: {}\r\n", &good[..63]),
        format!("X-Signature: {good}0\r\n"),
        format!("X-Signature: {}é\r\n", &good[..62]),
    ] {
        let length = body.len();
        wire.head(
            "/webhooks/plain",
            &format!("{fields}Content-Length: {length}\r\n"),
        )
        .await;
        wire.send(&body).await;
        let answer = wire.answer().await;
        assert_eq!(status(&answer), 401, "{fields}");
        bodies.push(body_of(&answer).to_owned());
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    wire.head("/webhooks/plain", &signed_fields(&body)).await;
    wire.send(&body).await;
    let answer = wire.answer().await;
    assert_eq!(status(&answer), 200);
    assert_eq!(
        header(&answer, "Idempotency-Replayed"),
        None,
        "nothing was stored before"
    );
    service.stop().await;
}

#[tokio::test]
async fn header_names_match_in_any_case_and_every_repeat_is_looked_at() {
    let service = start().await;
    let good = signature(event("evt_1").as_bytes());
    let bad = "0".repeat(64);
    for fields in [
        format!("x-signature: {good}\r\n"),
        format!("X-SIGNATURE: {good}\r\n"),
        format!("X-Signature: {bad}\r\nx-signature: {good}\r\n"),
        format!("X-Signature: {good}\r\nX-Signature: rubbish\r\n"),
    ] {
        let mut wire = Wire::open(service.public).await;
        let length = event("evt_1").len();
        wire.head(
            "/webhooks/plain",
            &format!("{fields}Content-Length: {length}\r\n"),
        )
        .await;
        wire.send(event("evt_1")).await;
        assert_eq!(status(&wire.answer().await), 200, "{fields}");
    }
    service.stop().await;
}

#[tokio::test]
async fn f26_the_good_items_of_a_batch_are_kept_and_the_sender_comes_again() {
    let service = start().await;
    let altered = r#"{"id":"evt_2","type":"order.paid","altered":true}"#;
    let batch = format!("[{},{altered}]", event("evt_1"));
    let answer = service.post("plain", &batch).await;
    assert_eq!(status(&answer), 401);
    let known = service.post("plain", &event("evt_1")).await;
    assert_eq!(header(&known, "Idempotency-Replayed"), Some("true"));
    let new = service.post("plain", &event("evt_2")).await;
    assert_eq!(header(&new, "Idempotency-Replayed"), None);
    service.stop().await;
}

#[tokio::test]
async fn f82_slash_and_query_are_one_address_and_nothing_is_redirected() {
    let service = start().await;
    let body = event("evt_1");
    for (target, expected) in [
        ("/webhooks/plain", 200),
        ("/webhooks/plain/", 200),
        ("/webhooks/plain?token=a&b", 200),
        ("/webhooks/plain/?", 200),
        ("/webhooks/pl%61in", 200),
        ("/webhooks", 404),
        ("/webhooks/", 404),
        ("/webhooks//", 404),
        ("/webhooks/plain//", 404),
        ("/webhooks/plain/more", 404),
        ("/webhooks/unknown", 404),
        ("/webhooks/%00%ff", 404),
        ("/webhook/plain", 404),
        ("/", 404),
    ] {
        let mut wire = Wire::open(service.public).await;
        wire.head(target, &signed_fields(&body)).await;
        wire.send(&body).await;
        let answer = wire.answer().await;
        assert_eq!(status(&answer), expected, "{target}");
        if expected == 404 {
            assert_eq!(
                header(&answer, "Content-Type"),
                Some("application/problem+json")
            );
        }
    }
    service.stop().await;
}

#[tokio::test]
async fn other_methods_are_405_with_allow() {
    let service = start().await;
    let mut wire = Wire::open(service.public).await;
    for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
        wire.send(format!(
            "{method} /webhooks/plain HTTP/1.1\r\nHost: x\r\n\r\n"
        ))
        .await;
        let answer = wire.answer().await;
        assert_eq!(status(&answer), 405, "{method}");
        assert_eq!(header(&answer, "Allow"), Some("POST"));
        assert!(body_of(&answer).contains("urn:oncehook:problem:method-not-allowed"));
    }
    wire.send("HEAD /webhooks/plain HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await;
    let answer = wire.rest().await;
    assert_eq!((status(&answer), body_of(&answer)), (405, ""));
    service.stop().await;
}

#[tokio::test]
async fn f33_the_body_limit_holds_to_the_byte_with_a_length_and_chunked() {
    let service = start().await;
    for (bytes, expected) in [(BODY_BYTES, 200), (BODY_BYTES + 1, 413)] {
        let body = sized("evt_1", bytes);
        let answer = service.post("plain", &body).await;
        assert_eq!(status(&answer), expected, "length {bytes}");
        let mut wire = Wire::open(service.public).await;
        let fields = format!(
            "X-Signature: {}\r\nTransfer-Encoding: chunked\r\n",
            signature(body.as_bytes())
        );
        wire.head("/webhooks/plain", &fields).await;
        wire.send(chunked(body.as_bytes(), 999)).await;
        assert_eq!(status(&wire.answer().await), expected, "chunked {bytes}");
    }
    service.stop().await;
}

#[tokio::test]
async fn slow_short_and_endless_bodies_are_answered_and_cost_no_worker() {
    let service = start().await;
    for (fields, sent, expected) in [
        ("Content-Length: 100\r\n", "{", 408),
        ("Transfer-Encoding: chunked\r\n", "1\r\n{\r\n", 408),
        ("Transfer-Encoding: chunked\r\n", "not a chunk\r\n", 400),
        ("Content-Length: 99999999\r\n", "", 413),
    ] {
        let mut wire = Wire::open(service.public).await;
        wire.head("/webhooks/plain", fields).await;
        wire.send(sent).await;
        let answer = wire.rest().await;
        assert_eq!(status(&answer), expected, "{fields}{sent}");
        assert_eq!(
            header(&answer, "Connection"),
            Some("close"),
            "{fields}{sent}"
        );
    }
    let mut short = Wire::open(service.public).await;
    short
        .head("/webhooks/plain", "Content-Length: 100\r\n")
        .await;
    short.send("half").await;
    short.done_writing().await;
    assert_eq!(status(&short.rest().await), 400);
    let answer = service.post("plain", &event("evt_1")).await;
    assert_eq!(status(&answer), 200);
    service.stop().await;
}

#[tokio::test]
async fn f32_a_sender_that_closed_its_side_still_gets_its_answer() {
    let service = start().await;
    let body = sized("evt_1", BODY_BYTES);
    let mut wire = Wire::open(service.public).await;
    wire.head("/webhooks/plain", &signed_fields(&body)).await;
    wire.send(&body).await;
    wire.done_writing().await;
    assert_eq!(status(&wire.rest().await), 200);
    let again = service.post("plain", &body).await;
    assert_eq!(header(&again, "Idempotency-Replayed"), Some("true"));
    service.stop().await;
}

#[tokio::test]
async fn f32_a_sender_that_vanished_stops_nothing() {
    let service = start().await;
    let body = event("evt_1");
    let mut wire = Wire::open(service.public).await;
    wire.head("/webhooks/plain", &signed_fields(&body)).await;
    wire.send(&body).await;
    drop(wire);
    // Whether the row was there first or this copy was: from now on it is known.
    sleep(Duration::from_millis(300)).await;
    service.post("plain", &body).await;
    let again = service.post("plain", &body).await;
    assert_eq!(header(&again, "Idempotency-Replayed"), Some("true"));
    service.stop().await;
}

#[tokio::test]
async fn f34_a_second_request_is_never_found_in_a_body() {
    let service = start().await;
    let inner = format!(
        "POST /webhooks/plain HTTP/1.1\r\nHost: x\r\n{}\r\n{}",
        signed_fields(&event("evt_inner")),
        event("evt_inner")
    );
    let length = inner.len();
    for (fields, expected) in [
        (
            format!("Content-Length: 0\r\nContent-Length: {length}\r\n"),
            400,
        ),
        (
            format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
            400,
        ),
        (
            format!("Connection: close\r\nContent-Length: {length}\r\n"),
            401,
        ),
    ] {
        let mut wire = Wire::open(service.public).await;
        wire.head("/webhooks/plain", &fields).await;
        wire.send(&inner).await;
        let answer = wire.rest().await;
        assert_eq!(
            (status(&answer), answers(&answer)),
            (expected, 1),
            "{fields}"
        );
    }
    let new = service.post("plain", &event("evt_inner")).await;
    assert_eq!(header(&new, "Idempotency-Replayed"), None);
    service.stop().await;
}

#[tokio::test]
async fn large_headers_are_431() {
    let service = start().await;
    let body = event("evt_1");
    for (bytes, expected) in [(60_000, 200), (70_000, 431), (120_000, 431)] {
        let mut wire = Wire::open(service.public).await;
        let large = format!("X-Large: {}\r\n", "a".repeat(bytes));
        wire.head(
            "/webhooks/plain",
            &format!("{large}{}", signed_fields(&body)),
        )
        .await;
        wire.send(&body).await;
        assert_eq!(status(&wire.answer().await), expected, "{bytes}");
    }
    service.stop().await;
}

#[tokio::test]
async fn f11_the_content_type_gates_nothing() {
    let service = start().await;
    for (number, content_type) in ["", "Content-Type: text/plain\r\n", "Content-Type: ;;\r\n"]
        .iter()
        .enumerate()
    {
        let body = event(&format!("evt_{number}"));
        let mut wire = Wire::open(service.public).await;
        wire.head(
            "/webhooks/plain",
            &format!("{content_type}{}", signed_fields(&body)),
        )
        .await;
        wire.send(&body).await;
        assert_eq!(status(&wire.answer().await), 200, "{content_type}");
    }
    service.stop().await;
}
