//! Where an operation stands: over the API, on the command line, in metrics and log.

use serde_json::Value;

use crate::support::{Gate, Receiver, Reply, oncehook, until, until_some};

use super::wire::{Client, app, booking, calling};

impl Client {
    /// Waits until the operation is in this state.
    pub(super) async fn until_state(&self, operation: &str, key: &str, state: &str) -> Value {
        let path = format!("/v1/operations/{operation}/keys/{key}");
        until_some(&format!("{operation} {key} is {state}"), async || {
            let answer = self.get(&path).await;
            (answer.status == 200)
                .then(|| answer.json())
                .filter(|status| status["state"] == state)
        })
        .await
    }
}

#[tokio::test]
async fn a_status_says_state_times_tries_and_answer() {
    let app = app(&booking("pay", "")).start().await;
    let client = Client::of(&app);
    let first = client.submit("pay", "order 17", r#"{"amount": 5}"#).await;
    assert_eq!(first.status, 400, "a space stands in quotes: {first:?}");
    let first = client
        .submit("pay", "\"order 17\"", r#"{"amount": 5}"#)
        .await;
    assert_eq!(first.status, 201, "{first:?}");
    let path = "/v1/operations/pay/keys/order%2017";
    let status = client.get(path).await.json();
    for (member, value) in [
        ("operation", "pay"),
        ("client", "local"),
        ("key", "order 17"),
        ("state", "completed"),
        ("resource", "pay_1"),
    ] {
        assert_eq!(status[member], value, "{status}");
    }
    assert_eq!(status["outcome"]["result"], "succeeded");
    assert_eq!(status["response"]["status"].to_string(), "201");
    assert_eq!(status["response"]["body"], first.body);
    assert!(status["created_at"].is_string() && status["outcome"]["at"].is_string());
    let by_id = format!("/v1/operations/{}", status["id"].as_str().unwrap());
    assert_eq!(client.get(&by_id).await.json(), status);
    for missing in [
        "/v1/operations/pay/keys/other",
        "/v1/operations/refund/keys/order%2017",
        "/v1/operations/0190f5e4-0000-7000-8000-000000000000",
        "/v1/operations/pay",
    ] {
        assert_eq!(client.get(missing).await.status, 404, "{missing}");
    }

    let config = app.config();
    let run = async |args: &[&str]| oncehook(&config, args, &[]).await;
    let shown = run(&["operations", "show", "pay", "order 17"]).await;
    assert_eq!(shown.code, Some(0), "{}", shown.said());
    assert!(shown.stdout.contains("pay_1") && shown.stdout.contains("completed"));
    let shown = run(&[
        "operations",
        "show",
        "--json",
        "--id",
        status["id"].as_str().unwrap(),
    ])
    .await;
    let json: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(json, status);
    let missing = run(&["operations", "show", "pay", "other"]).await;
    assert_eq!(missing.code, Some(1), "{}", missing.said());
    let listed = run(&["operations", "list", "--state", "completed", "--json"]).await;
    let json: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(json["operations"][0]["key"], "order 17", "{json}");
    let none = run(&["operations", "list", "--older-than", "1h"]).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), ""), "{none:?}");
}

#[tokio::test]
async fn metrics_and_log_tell_what_was_answered_and_hide_the_key() {
    let lost = Receiver::start().await;
    lost.always(Reply::cut());
    let toml = booking("pay", "") + &calling("lost", &lost, "on_unknown = \"hold\"");
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    let key = "customer-4711-secret";
    for body in [
        r#"{"amount": 8151}"#,
        r#"{"amount": 8151}"#,
        r#"{"amount": 2}"#,
    ] {
        client.submit("pay", key, body).await;
    }
    assert_eq!(
        client.submit("lost", key, r#"{"amount": 5}"#).await.status,
        202
    );
    client.until_state("lost", key, "uncertain").await;
    until("the page has it all", async || {
        let page = client.get("/metrics").await.body;
        [
            "oncehook_operation_requests_total{operation=\"pay\",answer=\"first\"} 1",
            "oncehook_operation_requests_total{operation=\"pay\",answer=\"replayed\"} 1",
            "oncehook_operation_requests_total{operation=\"pay\",answer=\"mismatch\"} 1",
            "oncehook_operation_key_conflicts_total{operation=\"pay\"} 1",
            "oncehook_operation_unresolved_reconciliations{operation=\"lost\"} 1",
            "oncehook_operation_processing_oldest_seconds{operation=\"pay\"} 0",
        ]
        .iter()
        .all(|line| page.contains(line))
    })
    .await;
    app.until_logged("\"answer\":\"mismatch\"").await;
    let said = app.output();
    assert!(said.contains("\"key.hash\":\""), "{said}");
    assert!(!said.contains("4711") && !said.contains("8151"), "{said}");
}

#[tokio::test]
async fn any_event_can_be_waited_for() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.always(Reply::status(200).behind(&gate));
    let lines = "secrets = [{ label = \"a\", value = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\" }]\non_unknown = \"retry\"";
    let app = app("")
        .stripe("shop")
        .http_handler("h", &receiver.url("/"), lines)
        .start()
        .await;
    let client = Client::of(&app);
    let path = "/v1/events/shop/evt_1/wait";
    assert_eq!(client.get(path).await.status, 404);
    let event = serde_json::json!({"id": "evt_1", "object": "event", "type": "a", "livemode": false, "data": {"object": {}}});
    assert_eq!(app.post_stripe("shop", &event).await.status(), 200);
    receiver.until_requests(1).await;
    let short = client
        .request(reqwest::Method::GET, path)
        .header("Prefer", "wait=0");
    let answer = super::wire::send(short).await;
    assert_eq!(
        (answer.status, answer.header("Preference-Applied")),
        (202, Some("wait=0"))
    );
    assert_eq!(answer.json()["state"], "pending");
    let waits = client.clone();
    let long = tokio::spawn(async move {
        let long = waits
            .request(reqwest::Method::GET, path)
            .header("Prefer", "wait=30");
        super::wire::send(long).await
    });
    gate.open();
    let answer = long.await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["state"], "succeeded");
}
