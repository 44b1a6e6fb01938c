//! The first source and handler of `README.md`, as they stand there.

use serde_json::json;

use crate::support::inbox::event;
use crate::support::signer::STRIPE_SECRET;
use crate::support::{TestApp, until};

const README: &str = include_str!("../../README.md");

/// The first block of a language.
fn block(language: &str) -> &'static str {
    let (_, rest) = README.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

#[tokio::test]
async fn the_first_source_and_handler_book_a_payment() {
    let database = "[database]\nurl = \"env:DATABASE_URL\"\n";
    // The tests name the database themselves.
    let (before, toml) = block("toml").split_once(database).unwrap();
    assert_eq!(before, "");
    let app = TestApp::builder()
        .setup(block("sql"))
        .toml(toml)
        .env("STRIPE_WEBHOOK_SECRET", STRIPE_SECRET)
        .start()
        .await;
    let payment = json!({ "id": "pi_1", "amount": 4200, "currency": "eur" });
    let event = event("evt_1", "payment_intent.succeeded", payment);
    for _ in 0..2 {
        let answer = app.post_stripe("stripe-main", &event).await;
        assert_eq!(answer.status(), 200);
    }
    until("the payment is booked", async || {
        app.db
            .count("app.payment WHERE reference = 'pi_1' AND amount = 4200")
            .await
            == 1
    })
    .await;
    assert_eq!(app.db.count("app.payment").await, 1);
}
