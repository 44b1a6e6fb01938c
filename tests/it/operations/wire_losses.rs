//! Answers, clients and nodes that are lost on the way: the intent is carried out once, and whoever comes
//! again gets its answer.

use std::time::Duration;

use crate::support::{Action, Gate, PgProxy, RawHttp, Receiver, Reply, TestDb, until};

use super::wire::{Client, app, booking, calling, send};

#[tokio::test]
async fn a_client_that_hangs_up_in_mid_run_stops_nothing() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.always(Reply::status(201).body("{\"paid\":true}").behind(&gate));
    let lines = "on_unknown = \"hold\"\nwait = \"1m\"\ntimeout = \"2m\"";
    let app = app(&calling("pay", &receiver, lines)).start().await;
    let mut raw = RawHttp::connect(app.api).await;
    let request = "POST /v1/operations/pay HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                   Idempotency-Key: k\r\nContent-Length: 12\r\n\r\n{\"amount\":5}";
    assert!(raw.send(request).await);
    receiver.until_requests(1).await;
    drop(raw);
    gate.open();
    let client = Client::of(&app);
    client.until_state("pay", "k", "completed").await;
    let again = client.submit("pay", "k", r#"{"amount":5}"#).await;
    assert_eq!(
        (again.status, again.body.as_str()),
        (201, "{\"paid\":true}")
    );
    assert!(again.replayed());
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn an_answer_that_is_cut_after_its_result_was_saved_is_the_same_again() {
    let db = TestDb::new().await;
    let proxy = PgProxy::start(&db.url).await;
    let url = proxy.url(&db.name);
    let app = app(&booking("pay", "wait = \"20s\""))
        .on(db)
        .database_url(url)
        .start()
        .await;
    let client = Client::of(&app);
    // The COMMIT that saves outcome and answer goes through, and its reply is lost.
    proxy.arm_after("into oncehook.response", "commit", Action::CutAfter);
    let first = client.submit("pay", "k", r#"{"amount": 5}"#).await;
    proxy.until_fired(1).await;
    assert_eq!(first.status, 201, "{first:?}");
    let again = client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(again.kept(), first.kept());
    assert!(again.replayed());
    assert_eq!(app.db.count("app.payment").await, 1);
}

#[tokio::test]
async fn a_lost_reservation_is_not_lost() {
    let db = TestDb::new().await;
    let proxy = PgProxy::start(&db.url).await;
    let url = proxy.url(&db.name);
    let app = app(&booking("pay", "wait = \"20s\""))
        .on(db)
        .database_url(url)
        .start()
        .await;
    let client = Client::of(&app);
    // The reservation is there and nobody knows: 503, and the retry finds it.
    proxy.arm_after("into oncehook.event_key", "commit", Action::CutAfter);
    let first = client.submit("pay", "k", r#"{"amount": 5}"#).await;
    proxy.until_fired(1).await;
    if first.status != 201 {
        assert_eq!(first.status, 503, "{first:?}");
        assert!(first.is_problem("reserve-unavailable"), "{first:?}");
        assert!(first.header("Retry-After").is_some());
    }
    let again = client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(again.status, 201, "{again:?}");
    assert_eq!(app.db.count("app.payment").await, 1);
}

#[tokio::test]
async fn a_node_that_dies_after_the_reservation_leaves_it_to_another() {
    let toml = booking("pay", "wait = \"20s\"");
    let mut app = app(&format!("{toml}\n[dispatch]\nenabled = false\n"))
        .start()
        .await;
    let intent = Client::of(&app).intent("pay", "k", r#"{"amount": 5}"#);
    let lost = tokio::spawn(intent.send());
    until("the key is reserved", async || {
        app.db.count("delivery").await == 1
    })
    .await;
    app.kill9();
    assert!(lost.await.unwrap().is_err());
    assert_eq!(app.db.count("app.payment").await, 0);
    let config = format!("[database]\nurl = {:?}\n{toml}", app.db.url);
    let node = app.another_node_with(&config).await;
    let client = Client::at(node.api);
    let answer = client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert!(answer.replayed());
    assert_eq!(app.db.count("app.payment").await, 1);
}

#[tokio::test]
async fn clients_that_wait_are_answered_202_when_the_node_stops() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.always(Reply::status(201).body("{\"paid\":true}").behind(&gate));
    let lines = "on_unknown = \"hold\"\nwait = \"1m\"\ntimeout = \"2m\"";
    let mut app = app(&calling("pay", &receiver, lines)).start().await;
    let client = Client::of(&app);
    let waiting = tokio::spawn(send(client.intent("pay", "k", r#"{"amount": 5}"#)));
    receiver.until_requests(1).await;
    app.sigterm();
    let answer = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    let answer = answer.unwrap().unwrap();
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(answer.json()["state"], "processing");
    gate.open();
    assert!(app.exit().await.success());
}
