//! `examples/embed.rs` and `examples/idempotent_route.rs`, as they stand, in front of a real database.

use actix_web::{App, HttpServer, web};
use oncehook::{Inbox, Limits};
use serde_json::{Value, json};

use crate::support::inbox::event;
use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{TestDb, until};

#[expect(dead_code, reason = "its `main` is for those who run it")]
#[path = "../../examples/embed.rs"]
mod example;

#[expect(dead_code, reason = "its `main` is for those who run it")]
#[path = "../../examples/idempotent_route.rs"]
mod route;

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

#[tokio::test]
async fn a_route_of_the_application_takes_effect_once_per_key() {
    let db = TestDb::blank().await;
    let engine = route::start(&db.url).await.unwrap();
    let database = web::Data::new(route::connect(&db.url).await.unwrap());
    let operations = route::operations(engine.clone());
    let server = HttpServer::new(move || {
        App::new().configure(|app| route::routes(app, &operations, database.clone()))
    })
    .workers(1)
    .disable_signals()
    .bind(("127.0.0.1", 0))
    .unwrap();
    let address = server.addrs()[0];
    tokio::spawn(server.run());
    let http = reqwest::Client::new();
    let pay = async |account: u8, token: &str, body: &'static str| {
        let sent = http
            .post(format!("http://{address}/accounts/{account}/payments"))
            .header("content-type", "application/json")
            .header("idempotency-key", "order-17")
            .bearer_auth(token)
            .body(body)
            .send()
            .await
            .unwrap();
        let replayed = sent.headers().contains_key("idempotency-replayed");
        (sent.status().as_u16(), replayed, sent.text().await.unwrap())
    };
    let paid = r#"{"account":"7","amount":1200,"payment":1}"#.to_owned();
    let body = r#"{"amount": 1200, "client_time": 1}"#;
    assert_eq!(pay(7, "demo-shop", body).await, (201, false, paid.clone()));
    let body = r#"{"client_time": 2, "amount": 1200}"#;
    assert_eq!(pay(7, "demo-shop", body).await, (201, true, paid));
    // Another account, another amount: another intent under a used key.
    assert_eq!(pay(8, "demo-shop", body).await.0, 409);
    assert_eq!(pay(7, "demo-shop", r#"{"amount": 5}"#).await.0, 409);
    // Another client's key is another's.
    assert_eq!(pay(7, "demo-desk", r#"{"amount": 0}"#).await.0, 422);
    assert_eq!(pay(7, "demo-thief", body).await.0, 401);
    let get = async |path: &str| {
        let asked = http.get(format!("http://{address}{path}"));
        let asked = asked.bearer_auth("demo-shop").send().await.unwrap();
        let text = asked.text().await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    assert_eq!(get("/accounts/7/balance").await, json!({ "balance": 1200 }));
    let status = get("/intents/create_payment/keys/order-17").await;
    assert_eq!(status["state"], "completed");
    assert_eq!(status["resource"], "payment 1");
    db.verify().await;
    engine.shutdown().await;
}
