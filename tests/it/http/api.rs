//! What people see.

use super::provider::signature;
use super::wire::{Wire, status};
use super::{body_of, event, header, start};

#[tokio::test]
async fn health_is_on_both_listeners_and_the_api_on_one() {
    let service = start().await;
    for (target, on_public) in [("/healthz", 200), ("/readyz", 200), ("/v1/events", 404)] {
        let mut wire = Wire::open(service.public).await;
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            .await;
        assert_eq!(status(&wire.answer().await), on_public, "{target}");
        assert_eq!(status(&service.get(target).await), 200, "{target}");
    }
    service.stop().await;
}

#[tokio::test]
async fn f84_a_draining_node_is_not_ready_and_still_takes_webhooks() {
    let service = start().await;
    service.engine.drain();
    let answer = service.get("/readyz").await;
    assert_eq!(status(&answer), 503);
    assert!(header(&answer, "Retry-After").is_some());
    assert_eq!(status(&service.get("/healthz").await), 200);
    let answer = service.post("plain", &event("evt_1")).await;
    assert_eq!(status(&answer), 200);
    service.stop().await;
}

#[tokio::test]
async fn f1_f2_the_raw_bytes_come_back_as_they_were_sent() {
    let service = start().await;
    let odd = "{ \"type\":\"a\\/b\",  \"id\" : \"evt_1\", \"x\": \"é\\u00e9\u{2028}👍\" }\n";
    assert_eq!(status(&service.post("plain", odd).await), 200);
    let answer = service.get("/v1/events/plain/evt_1/raw").await;
    assert_eq!(status(&answer), 200);
    assert_eq!(body_of(&answer), odd.trim_end());
    assert_eq!(
        header(&answer, "Content-Type"),
        Some("application/octet-stream")
    );
    assert_eq!(header(&answer, "X-Content-Type-Options"), Some("nosniff"));
    service.stop().await;
}

#[tokio::test]
async fn a_key_with_any_characters_can_be_asked_for() {
    let service = start().await;
    for (id, in_path) in [
        ("evt_1", "evt_1"),
        ("a/b", "a%2Fb"),
        ("a/b/c", "a/b/c"),
        ("a/raw", "a%2Fraw"),
        // Inside the key `%` and `:` stand escaped, and the key is then encoded for the path.
        ("100%:x", "100%2525%253Ax"),
        ("ü &?#", "%C3%BC%20%26%3F%23"),
    ] {
        assert_eq!(status(&service.post("plain", &event(id)).await), 200);
        let answer = service.get(&format!("/v1/events/plain/{in_path}")).await;
        assert_eq!(status(&answer), 200, "{id}");
        assert!(body_of(&answer).contains("\"provider_id\""), "{answer}");
        let answer = service
            .get(&format!("/v1/events/plain/{in_path}/raw"))
            .await;
        assert_eq!(body_of(&answer), event(id));
    }
    service.stop().await;
}

#[tokio::test]
async fn lists_are_filtered_and_paged_and_refuse_what_they_do_not_know() {
    let service = start().await;
    for number in 0..5 {
        service
            .post("plain", &event(&format!("evt_{number}")))
            .await;
    }
    let mut keys = Vec::new();
    let mut target = "/v1/events?source=plain&limit=2".to_owned();
    loop {
        let answer = service.get(&target).await;
        assert_eq!(status(&answer), 200);
        let page: serde_json::Value = serde_json::from_str(body_of(&answer)).unwrap();
        for event in page["events"].as_array().unwrap() {
            keys.push(event["key"].as_str().unwrap().to_owned());
        }
        let Some(next) = page["next"].as_str() else {
            break;
        };
        target = format!("/v1/events?source=plain&limit=2&before={next}");
    }
    assert_eq!(keys, ["evt_4", "evt_3", "evt_2", "evt_1", "evt_0"]);
    for query in ["sorce=plain", "limit=0", "state=done", "before=x"] {
        let answer = service.get(&format!("/v1/events?{query}")).await;
        assert_eq!(status(&answer), 400, "{query}");
    }
    service.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_404_and_other_methods_are_405() {
    let service = start().await;
    for target in [
        "/v1/events/plain/none",
        "/v1/events/plain/none/raw",
        "/v1/events/none/none",
        "/v1/events/plain/a%00b",
        "/v1/events/pla%00in/a/raw",
        "/v1/event",
    ] {
        assert_eq!(status(&service.get(target).await), 404, "{target}");
    }
    for (target, allow) in [
        ("POST /v1/events", "GET"),
        ("POST /v1/events/plain/evt_1", "GET"),
        ("GET /v1/events/plain/evt_1/replay", "POST"),
    ] {
        let mut wire = Wire::open(service.api).await;
        wire.send(format!("{target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            .await;
        let answer = wire.answer().await;
        assert_eq!(status(&answer), 405, "{target}");
        assert_eq!(header(&answer, "Allow"), Some(allow));
    }
    service.stop().await;
}

#[tokio::test]
async fn a_replay_needs_json_a_handler_and_a_reason() {
    let service = start().await;
    service.post("plain", &event("evt_1")).await;
    let good = r#"{"handler":"none","reason":"test"}"#;
    for (content_type, body, expected) in [
        ("text/plain", good, 415),
        ("application/json", "{}", 400),
        ("application/json", r#"{"handler":"none","reason":""}"#, 400),
        ("application/json; charset=utf-8", good, 404),
    ] {
        let mut wire = Wire::open(service.api).await;
        let length = body.len();
        wire.head(
            "/v1/events/plain/evt_1/replay",
            &format!("Content-Type: {content_type}\r\nContent-Length: {length}\r\n"),
        )
        .await;
        wire.send(body).await;
        let answer = wire.answer().await;
        assert_eq!(status(&answer), expected, "{content_type} {body}");
    }
    service.stop().await;
}

#[tokio::test]
async fn f77_no_secret_of_a_request_is_found_in_what_is_stored() {
    let service = start().await;
    let body = event("evt_1");
    let secrets = [
        "s3cret-bearer",
        "s3cret-cookie",
        "s3cret-key",
        "s3cret-query",
    ];
    let fields = format!(
        "Authorization: Bearer {}\r\nCookie: a={}\r\nX-Api-Key: {}\r\nUser-Agent: test\r\n\
         X-Signature: {}\r\nContent-Length: {}\r\n",
        secrets[0],
        secrets[1],
        secrets[2],
        signature(body.as_bytes()),
        body.len()
    );
    let mut wire = Wire::open(service.public).await;
    wire.head(&format!("/webhooks/plain?token={}", secrets[3]), &fields)
        .await;
    wire.send(&body).await;
    assert_eq!(status(&wire.answer().await), 200);
    let shown = service.get("/v1/events/plain/evt_1").await;
    assert!(shown.contains("x-signature") && shown.contains("user-agent"));
    for secret in secrets {
        assert!(!shown.contains(secret), "{secret}");
    }
    service.stop().await;
}
