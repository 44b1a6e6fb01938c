//! `examples/embed.rs`, as it stands, in front of a real database.

use actix_web::{App, HttpServer, web};
use oncehook::{Inbox, Limits};
use serde_json::{Value, json};

use crate::support::inbox::event;
use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{TestDb, until};

#[expect(dead_code, reason = "its `main` is for those who run it")]
#[path = "../../examples/embed.rs"]
mod example;

#[tokio::test]
async fn a_payment_is_recorded_in_the_applications_own_table_once() {
    let db = TestDb::blank().await;
    let engine = example::start(&db.url, STRIPE_SECRET).await.unwrap();
    let database = web::Data::new(example::connect(&db.url).await.unwrap());
    let inbox = Inbox::new(engine.clone(), Limits::default());
    let server = HttpServer::new(move || {
        App::new().configure(|app| example::routes(app, &inbox, database.clone()))
    })
    .workers(1)
    .disable_signals()
    .bind(("127.0.0.1", 0))
    .unwrap();
    let address = server.addrs()[0];
    let server = server.run();
    let handle = server.handle();
    let serving = tokio::spawn(server);

    let http = reqwest::Client::new();
    let payment = json!({ "id": "pi_1", "amount": 1200, "currency": "eur" });
    let body = serde_json::to_vec(&event("evt_1", "payment_intent.succeeded", payment)).unwrap();
    for replayed in [false, true] {
        let answer = http
            .post(format!("http://{address}/pay/webhooks/stripe-main"))
            .header(
                "stripe-signature",
                signer::stripe(STRIPE_SECRET, signer::now_s(), &body),
            )
            .body(body.clone())
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(
            answer.headers().contains_key("idempotency-replayed"),
            replayed
        );
    }
    until("the payment is recorded", async || {
        db.count("shop.payment").await == 1
    })
    .await;
    let page = http
        .get(format!("http://{address}/payments"))
        .send()
        .await
        .unwrap();
    let page: Value = serde_json::from_slice(&page.bytes().await.unwrap()).unwrap();
    assert_eq!(page, json!({ "payments": 1, "amount": 1200 }));
    let timeline = engine.store().timeline("stripe-main", "evt_1").await;
    let timeline = timeline.unwrap();
    assert_eq!(timeline.outcomes[0].result, "succeeded");
    assert_eq!(timeline.outcomes[0].resource.as_deref(), Some("pi_1"));

    handle.stop(true).await;
    serving.await.unwrap().unwrap();
    engine.shutdown().await;
}

#[tokio::test]
async fn the_example_refuses_a_secret_that_anybody_could_guess() {
    let db = TestDb::blank().await;
    let refused = example::start(&db.url, "whsec_short").await.unwrap_err();
    assert!(refused.to_string().contains("at least 16"), "{refused}");
}
