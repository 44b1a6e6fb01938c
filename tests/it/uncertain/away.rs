//! The database is away while an answer comes: it is kept until the database is back.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::crash::{paid, proxied, put};
use crate::support::{Gate, PgProxy, Reply, TestApp, until};

use super::{Applies, Manner, Payments, history, until_for_people};

/// `end` of a call's lease and time-out together is seven seconds behind its start.
const LINES: &str = "on_unknown = \"hold\"\ntimeout = \"1s\"\nlease = \"6s\"";

/// A call is answered, and the node that has the answer reaches no database.
async fn answered_without_a_database(
    payments: &Payments,
    change: impl Fn(&str) -> String,
) -> (TestApp, PgProxy, String) {
    let (db, proxy) = proxied().await;
    let (url, direct) = (proxy.url(&db.name), db.url.clone());
    let answer = Gate::closed();
    payments.next([Manner::Says(
        Reply::status(201).behind(&answer),
        Applies::Yes,
    )]);
    let mut app = payments.app(LINES).on(db).database_url(&url).start().await;
    let toml = change(app.toml());
    if toml != app.toml() {
        app.reconfigure(&toml);
        app.restart().await;
    }
    put(&app, &paid("evt_1")).await;
    payments.until_calls(1).await;
    proxy.refuse();
    answer.open();
    app.until_logged("verdict not written yet").await;
    let direct = app.toml().replace(&url, &direct);
    (app, proxy, direct)
}

#[tokio::test]
async fn an_answer_outlasts_a_database_that_is_away_for_longer_than_the_lease() {
    let payments = Payments::start().await;
    let began = Instant::now();
    let (mut app, proxy, direct) = answered_without_a_database(&payments, str::to_owned).await;
    let second = app.another_node_with(&direct).await;
    until_for_people(&second, "evt_1").await;
    until("lease and time-out are long over", async || {
        began.elapsed() > Duration::from_secs(10)
    })
    .await;
    proxy.admit();
    let outcome = second.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["decided_by"]),
        (&json!("succeeded"), &json!("handler"))
    );
    let history = history(&second, "evt_1").await;
    assert!(history[1].starts_with("evidence: "), "{history:?}");
    assert_eq!((payments.calls().len(), payments.applied()), (1, vec![1]));
    app.db.verify().await;
}

#[tokio::test]
async fn an_answer_that_is_given_up_at_the_stop_is_an_error_that_names_its_event() {
    let payments = Payments::start().await;
    let quick = |toml: &str| toml.replace("[dispatch]", "[dispatch]\ngrace = \"300ms\"");
    let (mut app, _proxy, _) = answered_without_a_database(&payments, quick).await;
    let id: uuid::Uuid = app.db.one("SELECT id FROM oncehook.event").await;
    app.stop().await;
    let output = app.output();
    let said = output.lines().find(|line| line.contains("it is given up"));
    let said = said.unwrap_or_else(|| panic!("nothing is said: {output}"));
    for part in ["ERROR", &id.to_string(), "payout", "succeeded"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
