//! An item is an event like any other, with its own signature, key and refusal.

use serde_json::json;

use super::calls::{self, adyen_item};
use super::{start, stored, until_booked};

#[tokio::test]
async fn f26_each_item_stands_for_itself_and_the_repaired_batch_adds_only_what_is_new() {
    let inbox = start().await;
    let good = adyen_item("psp_1", "order 1", 100);
    let whole = adyen_item("psp_2", "order 2", 200);
    let mut altered = whole.clone();
    altered["NotificationRequestItem"]["amount"]["value"] = json!(20_000);
    for _ in 0..2 {
        let answer = calls::adyen(&[good.clone(), altered.clone()])
            .to(inbox.public)
            .await;
        assert_eq!(answer.status, 401, "so that the sender comes again");
        assert!(!answer.body.contains("[accepted]"));
    }
    until_booked(&inbox.db, 1).await;
    let keys: Vec<String> = inbox.db.all("SELECT key FROM oncehook.event_key").await;
    assert_eq!(keys, ["psp_1:AUTHORISATION:true"]);
    let booked: Vec<Vec<u8>> = inbox.db.all("SELECT body FROM app.ledger").await;
    assert!(
        !String::from_utf8(booked[0].clone())
            .unwrap()
            .contains("psp_2")
    );
    crate::support::until("the altered item is recorded as refused", async || {
        inbox
            .db
            .count("rejected WHERE reason = 'bad_signature'")
            .await
            == 2
    })
    .await;

    let repaired = calls::adyen(&[good, whole]);
    let answer = repaired.to(inbox.public).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "[accepted]"));
    assert!(!answer.replayed());
    until_booked(&inbox.db, 2).await;
    let answer = repaired.to(inbox.public).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "[accepted]"));
    assert!(answer.replayed(), "all of it is known now");
    until_booked(&inbox.db, 2).await;
    assert_eq!(stored(&inbox.db).await, [2, 2, 2]);
    assert_eq!(inbox.db.count("conflict").await, 0);
}

#[tokio::test]
async fn f26_a_body_of_altered_items_only_leaves_nothing() {
    let inbox = start().await;
    let mut items = vec![adyen_item("psp_1", "o", 1), adyen_item("psp_2", "o", 2)];
    for item in &mut items {
        item["NotificationRequestItem"]["success"] = json!("false");
    }
    assert_eq!(calls::adyen(&items).to(inbox.public).await.status, 401);
    assert_eq!(stored(&inbox.db).await, [0, 0, 0]);
}

#[tokio::test]
async fn f27_alone_and_in_a_batch_a_key_names_one_event() {
    let inbox = start().await;
    let (one, two) = (adyen_item("psp_1", "o", 1), adyen_item("psp_2", "o", 2));
    for (items, replayed) in [
        (vec![one.clone()], false),
        // Twice in one body.
        (vec![two.clone(), one.clone(), two.clone()], false),
        (vec![two.clone()], true),
        (vec![one, two], true),
    ] {
        let answer = calls::adyen(&items).to(inbox.public).await;
        assert_eq!((answer.status, answer.replayed()), (200, replayed));
    }
    until_booked(&inbox.db, 2).await;
    assert_eq!(inbox.db.count("event_key").await, 2);
    let copies: i64 = inbox
        .db
        .one("SELECT sum(count)::bigint FROM oncehook.receipt")
        .await;
    assert_eq!(copies, 5);
}
