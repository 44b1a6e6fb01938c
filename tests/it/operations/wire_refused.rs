//! What is refused before the reservation leaves nothing behind.

use oncehook::domain::Role;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;

use crate::access;
use crate::support::RawHttp;

use super::wire::{Client, app, booking, send};

#[tokio::test]
async fn what_is_refused_is_not_stored_and_the_answer_teaches() {
    let toml = booking("pay", "") + "[limits]\nbody = \"1KiB\"\n";
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    let post = || client.request(Method::POST, "/v1/operations/pay");
    let json = |body: &str| {
        post()
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_owned())
    };
    let missing = send(json("{}")).await;
    assert_eq!(missing.status, 400);
    assert!(missing.is_problem("idempotency-key-missing"), "{missing:?}");
    assert!(missing.body.contains("Idempotency-Key: "), "{missing:?}");
    for key in [
        "",
        "\"\"",
        "a, b",
        "a b",
        "\"a",
        &"x".repeat(256),
        "caf\u{e9}",
    ] {
        let answer = send(json("{}").header("Idempotency-Key", key)).await;
        assert_eq!(answer.status, 400, "{key}");
        assert!(answer.is_problem("idempotency-key-malformed"), "{answer:?}");
    }
    let mut raw = RawHttp::connect(app.api).await;
    let twice = "POST /v1/operations/pay HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Idempotency-Key: a\r\nIdempotency-Key: a\r\nContent-Length: 2\r\n\r\n{}";
    assert!(raw.send(twice).await);
    let answer = raw.read_response().await.unwrap();
    assert_eq!(answer.status, 400, "{answer:?}");
    let long = format!("\"{}\"", "x".repeat(2_000));
    for (media, body, status) in [
        (Some("text/plain"), "{}", 415),
        (None, "{}", 415),
        (Some("application/json"), "", 400),
        (Some("application/json"), "amount=5", 400),
        (Some("application/json"), r#"{"a":1,"a":2}"#, 400),
        (Some("application/json"), &long, 413),
    ] {
        let mut request = post().header("Idempotency-Key", "k").body(body.to_owned());
        if let Some(media) = media {
            request = request.header(CONTENT_TYPE, media);
        }
        let answer = send(request).await;
        assert_eq!(answer.status, status, "{body}");
    }
    let unknown = client.submit("refund", "k", "{}").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.is_problem("unknown-operation"), "{unknown:?}");
    for table in ["event_key", "request", "event", "delivery", "conflict"] {
        assert_eq!(app.db.count(table).await, 0, "{table}");
    }
    // It is no address for webhooks either.
    let webhook = app.post("pay", &[], "{}").await;
    assert_eq!(webhook.status().as_u16(), 404);
    // The key is still free.
    let answer = client.submit("pay", "k", r#"{"amount": 1}"#).await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[tokio::test]
async fn two_clients_and_two_operations_with_one_string_are_apart() {
    let toml = booking("create_order", "") + &booking("refund_order", "");
    let app = app(&toml).start().await;
    let (_, shop) = access::create(&app.db, "shop", &[Role::Submit], None).await;
    let (_, desk) = access::create(&app.db, "desk", &[Role::Submit], None).await;
    let (_, watcher) = access::create(&app.db, "watcher", &[Role::Read], None).await;
    let client = Client::of(&app);
    let (shop, desk) = (client.with_token(&shop), client.with_token(&desk));
    let watcher = client.with_token(&watcher);
    let mut made = Vec::new();
    for (client, operation) in [
        (&shop, "create_order"),
        (&desk, "create_order"),
        (&shop, "refund_order"),
    ] {
        let amount = made.len() + 1;
        let body = format!("{{\"amount\": {amount}}}");
        let answer = client.submit(operation, "k", body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert!(!answer.replayed());
        made.push(answer.body);
    }
    made.dedup();
    assert_eq!(made.len(), 3);
    let refused = client.submit("create_order", "k", "{}").await;
    assert_eq!(refused.status, 401);
    assert_eq!(watcher.submit("create_order", "k", "{}").await.status, 403);

    // Each sees its own; who may read sees all and says whose.
    let path = "/v1/operations/create_order/keys/k";
    let own = desk.get(path).await.json();
    assert_eq!(own["client"], "desk");
    let id = own["id"].as_str().unwrap();
    let by_id = format!("/v1/operations/{id}");
    assert_eq!(desk.get(&by_id).await.json()["key"], "k");
    assert_eq!(shop.get(&by_id).await.status, 404);
    assert_eq!(shop.get(&format!("{path}?client=desk")).await.status, 403);
    assert_eq!(watcher.get(path).await.status, 404);
    let seen = watcher.get(&format!("{path}?client=desk")).await.json();
    assert_eq!(seen["id"].as_str(), Some(id));
    assert_eq!(watcher.get(&by_id).await.status, 200);
    assert_eq!(desk.get("/v1/operations").await.status, 403);
    let list = watcher.get("/v1/operations").await.json();
    assert_eq!(list["operations"].as_array().unwrap().len(), 3);
    app.db.verify().await;
}
