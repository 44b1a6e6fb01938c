//! A receiver that is away, or that fails: what it costs, and how it ends.

use crate::crash::{ledger, metric, until_metric};
use crate::support::node::free_address;
use crate::support::{Receiver, Reply, until};

use super::put_many;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn lines(more: &str) -> String {
    format!(
        "secrets = [{{ label = \"a\", value = {SECRET:?} }}]\non_unknown = \"retry\"\n\
         retry = {{ for = \"1m\", first = \"10ms\", max = \"20ms\" }}\n{more}"
    )
}

#[tokio::test]
async fn an_outage_costs_a_few_tries_stops_no_webhook_and_ends_by_itself() {
    let address = free_address();
    let policy =
        "breaker = { failures = 50, minimum = 5, first = \"200ms\", max = \"400ms\", probes = 2 }";
    let app = ledger()
        .http_handler("ledger", &format!("http://{address}/"), &lines(policy))
        .start()
        .await;
    // Each is acknowledged, breaker or not.
    put_many(&app, "stripe", "evt", 150).await;
    until_metric(&app, "oncehook_breaker_opened_total", |n| n >= 4.0).await;
    app.until_logged("breaker open").await;
    let (_, handlers) = app.get("/v1/handlers").await;
    assert!(
        ["open", "half-open"].contains(&handlers[0]["breaker"].as_str().unwrap()),
        "{handlers}"
    );
    let opened = metric(&app, "oncehook_breaker_opened_total").await.unwrap();
    let tries = app.db.count("attempt").await;
    // 16 slots before it opened, and what was claimed with them; then two per opening.
    #[expect(clippy::cast_possible_truncation, reason = "a small count")]
    let most = 2 * 16 + 2 * (opened as i64 + 1);
    eprintln!("150 deliveries, {opened} openings, {tries} tries");
    assert!(tries <= most, "{tries} tries, {opened} openings");
    assert_eq!(app.db.count("outcome").await, 0);

    let receiver = Receiver::start_on(address).await;
    until("all are done", async || {
        app.db.count("outcome").await == 150
    })
    .await;
    assert_eq!(
        app.db.count("outcome WHERE result = 'succeeded'").await,
        150
    );
    assert_eq!(receiver.requests().len(), 150);
    until_metric(&app, "oncehook_breaker_state", |state| state == 0.0).await;
    app.db.verify().await;
}

#[tokio::test]
async fn a_refusal_of_single_events_opens_nothing() {
    let receiver = Receiver::start().await;
    receiver.always(Reply::status(422));
    let app = ledger()
        .http_handler(
            "ledger",
            &receiver.url("/"),
            &lines("breaker = { minimum = 2 }"),
        )
        .start()
        .await;
    put_many(&app, "stripe", "evt", 20).await;
    until("all are dead", async || {
        app.db.count("outcome WHERE result = 'dead'").await == 20
    })
    .await;
    assert_eq!(
        metric(&app, "oncehook_breaker_opened_total").await,
        Some(0.0)
    );
}

#[tokio::test]
async fn repetitions_of_a_failing_handler_keep_to_their_budget() {
    let receiver = Receiver::start().await;
    receiver.always(Reply::status(500));
    let app = ledger()
        .http_handler("ledger", &receiver.url("/"), &lines("breaker = false"))
        .start()
        .await;
    put_many(&app, "stripe", "evt", 100).await;
    until_metric(&app, "oncehook_retries_deferred_total", |n| n >= 100.0).await;
    // The hundred, as many repetitions as were made before it counted as failing, then one a second.
    let requests = receiver.requests();
    let first = requests
        .iter()
        .filter(|r| r.header("Oncehook-Attempt") == Some("1"))
        .count();
    let again = requests.len() - first;
    assert_eq!(first, 100);
    assert!(again <= 60 + 16 + 20, "{again} repetitions");
    let outcomes = app.db.count("outcome").await;
    assert_eq!(outcomes, 0, "what is put off is not counted as a try");
    let failures: i64 = app
        .db
        .one("SELECT sum(failures)::bigint FROM oncehook.delivery")
        .await;
    assert!(failures <= i64::try_from(requests.len()).unwrap());
    app.db.verify().await;
}
