//! What counts as the same content, in every state and under every rule that a key was ever judged by.

use crate::support::{Receiver, Reply};

use super::wire::{Client, app, booking, calling, send};

const BODY: &str =
    r#"{"amount": 5, "rate": 0.10, "big": 1234567890123456789, "list": [1, 2], "none": null}"#;

#[tokio::test]
async fn f59_other_spellings_of_one_content_are_replayed_and_other_content_is_told_so() {
    let app = app(&booking("pay", "wait = \"20s\"")).start().await;
    let client = Client::of(&app);
    let first = client.submit("pay", "k", BODY).await;
    assert_eq!(first.status, 201, "{first:?}");
    for same in [
        r#"{"none":null,"list":[1,2],"big":1234567890123456789,"rate":0.10,"amount":5}"#,
        "{\r\n\t\"amount\" : 5 , \"rate\":0.10,\"list\":[ 1,2 ],\"big\":1234567890123456789,\"none\":null }\n",
        r#"{"\u0061mount": 5, "rate": 0.10, "big": 1234567890123456789, "list": [1, 2], "none": null}"#,
    ] {
        let again = client.submit("pay", "k", same).await;
        assert_eq!(again.kept(), first.kept(), "{same}");
        assert!(again.replayed(), "{same}");
    }
    for (what, other) in [
        ("5.0", BODY.replace("\"amount\": 5", "\"amount\": 5.0")),
        ("5e0", BODY.replace("\"amount\": 5", "\"amount\": 5e0")),
        ("text", BODY.replace("\"amount\": 5", "\"amount\": \"5\"")),
        ("0.1", BODY.replace("0.10", "0.1")),
        ("19th digit", BODY.replace("6789", "6788")),
        ("order", BODY.replace("[1, 2]", "[2, 1]")),
        ("absent", BODY.replace(", \"none\": null", "")),
        ("one more", BODY.replace("null}", "null, \"x\": 1}")),
    ] {
        let answer = client.submit("pay", "k", other).await;
        assert_eq!(answer.status, 409, "{what}: {answer:?}");
        assert!(answer.is_problem("idempotency-key-mismatch"), "{answer:?}");
    }
    let twice = client
        .submit("pay", "k", r#"{"amount": 5, "amount": 5}"#)
        .await;
    assert!(twice.is_problem("body-repeats-names"), "{twice:?}");
    assert_eq!(app.db.count("app.payment").await, 1);
    assert_eq!(app.db.count("conflict").await, 8);
    app.db.verify().await;
}

/// A payment with this amount and time of the client.
fn at(amount: i32, time: i32) -> String {
    format!("{{\"amount\": {amount}, \"at\": {time}, \"trace\": {time}}}")
}

#[tokio::test]
async fn a_key_is_judged_under_the_rule_that_was_stored_with_it() {
    let first_rule = booking("pay", "wait = \"20s\"\nvolatile = [\"/at\"]");
    let mut app = app(&first_rule).start().await;
    let config = |rule: &str| {
        let operation = booking("pay", &format!("wait = \"20s\"\nvolatile = {rule}"));
        format!("[database]\nurl = {:?}\n{operation}", app.db.url)
    };
    let (second_rule, third_rule) = (config("[]"), config("[\"/at\", \"/trace\"]"));
    let client = Client::of(&app);
    let old = r#"{"amount": 1, "at": 1}"#;
    assert_eq!(client.submit("pay", "old", old).await.status, 201);

    // Nothing is volatile any more: the old key keeps its rule, also on the node that has a new one.
    let second = app.another_node_with(&second_rule).await;
    let strict = Client::at(second.api);
    for node in [&client, &strict] {
        let again = node.submit("pay", "old", r#"{"amount": 1, "at": 2}"#).await;
        assert_eq!((again.status, again.replayed()), (201, true), "{again:?}");
        let other = node.submit("pay", "old", r#"{"amount": 2, "at": 1}"#).await;
        assert_eq!(other.status, 409, "{other:?}");
    }
    assert_eq!(strict.submit("pay", "new", old).await.status, 201);
    for node in [&client, &strict] {
        let other = node.submit("pay", "new", r#"{"amount": 1, "at": 2}"#).await;
        assert_eq!(other.status, 409, "{other:?}");
        assert!(node.submit("pay", "new", old).await.replayed());
    }

    // A rule that came when the others were at work already: they read it.
    let third = app.another_node_with(&third_rule).await;
    let newest = Client::at(third.api);
    assert_eq!(newest.submit("pay", "newest", at(1, 1)).await.status, 201);
    for node in [&client, &strict, &newest] {
        let again = node.submit("pay", "newest", at(1, 2)).await;
        assert!(again.replayed(), "{again:?}");
        let other = node.submit("pay", "newest", at(2, 1)).await;
        assert_eq!(other.status, 409, "{other:?}");
    }
    let rules: Vec<i16> = app
        .db
        .all("SELECT digest_rule FROM oncehook.event_key ORDER BY first_seen")
        .await;
    assert_eq!(rules, [1, 2, 3]);
    assert_eq!(app.db.count("app.payment").await, 3);
    app.db.verify().await;
}

#[tokio::test]
async fn other_content_is_refused_however_the_first_has_ended() {
    let lost = Receiver::start().await;
    lost.always(Reply::cut());
    let lines = "wait = \"20s\"";
    let toml = booking("pay", lines)
        + &booking("once", &format!("{lines}\non_failure = \"keep\""))
        + &calling("lost", &lost, "on_unknown = \"hold\"");
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    // A no of the business, a failure that would begin again, one that would not, one that a person gave up.
    let mut tell = Vec::new();
    for (operation, key, body, status) in [
        ("pay", "no", r#"{"amount": 0}"#, 422),
        ("pay", "dead", r#"{"amount": -1}"#, 500),
        ("once", "dead", r#"{"amount": -1}"#, 500),
        ("lost", "k", r#"{"amount": 5}"#, 202),
    ] {
        let first = client.submit(operation, key, body).await;
        assert_eq!(first.status, status, "{operation} {key}: {first:?}");
        tell.push((operation, key));
    }
    client.until_state("lost", "k", "uncertain").await;
    let path = "/v1/events/lost/local:k/resolve";
    let word = serde_json::json!({ "handler": "lost", "as": "dead", "reason": "no" });
    let resolve = client
        .request(reqwest::Method::POST, path)
        .header("Content-Type", "application/json")
        .body(word.to_string());
    assert_eq!(send(resolve).await.status, 200);
    let stored = app.db.count("outcome").await;
    for (operation, key) in &tell {
        let other = client.submit(operation, key, r#"{"amount": 77}"#).await;
        assert_eq!(other.status, 409, "{operation} {key}: {other:?}");
        assert!(other.is_problem("idempotency-key-mismatch"), "{other:?}");
        assert!(!other.body.contains("nothing to pay"), "{other:?}");
    }
    // Nothing was begun for it, and the first content has what it had.
    assert_eq!(app.db.count("outcome").await, stored);
    assert_eq!(app.db.count("delivery").await, 0);
    assert_eq!(app.db.count("app.payment").await, 0);
    assert!(
        client
            .submit("pay", "no", r#"{"amount": 0}"#)
            .await
            .replayed()
    );

    // An expired key is another matter: whatever comes is a new intent.
    app.db
        .execute("UPDATE oncehook.event_key SET expires_at = now() - interval '1 s'")
        .await;
    let fresh = client.submit("pay", "no", r#"{"amount": 77}"#).await;
    assert_eq!((fresh.status, fresh.replayed()), (201, false), "{fresh:?}");
    app.db.verify().await;
}
