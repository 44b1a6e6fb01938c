//! What a probe says and what it makes of a delivery.

use std::time::SystemTime;

use serde_json::json;

use crate::crash::{metric, paid, put, timeline, until_metric};
use crate::support::{Gate, Reply, oncehook, signer, until};

use super::{
    Applies, Manner, Payments, SECRET, due, history, land, open, says, until_for_people,
    until_uncertain,
};

/// Every manner in which the result of a call is not known.
fn unknown(applies: Applies) -> Vec<(Manner, &'static str)> {
    let says = |reply| Manner::Says(reply, applies);
    vec![
        (says(Reply::status(408)), "HTTP 408: result unknown"),
        (says(Reply::status(500)), "HTTP 500: result unknown"),
        (says(Reply::status(502)), "HTTP 502: result unknown"),
        (
            says(Reply::status(503).header("Retry-After", "1")),
            "HTTP 503: result unknown",
        ),
        (says(Reply::status(504)), "HTTP 504: result unknown"),
        (
            says(Reply::cut()),
            "the connection was cut before an answer: result unknown",
        ),
        (
            says(Reply::cut_within()),
            "the connection was cut before an answer: result unknown",
        ),
        (
            Manner::Holds(Gate::closed(), applies),
            "no answer within 400ms: result unknown",
        ),
    ]
}

#[tokio::test]
async fn a_call_that_was_applied_and_whose_answer_is_lost_is_ended_by_a_probe() {
    let payments = Payments::start().await;
    let app = payments
        .probed(
            "\"100ms\", \"1m\"",
            "timeout = \"400ms\"\nlease = \"30s\"\nconcurrency = 1",
        )
        .start()
        .await;
    for (n, (manner, error)) in unknown(Applies::Yes).into_iter().enumerate() {
        payments.next([manner]);
        let key = format!("evt_{n}");
        put(&app, &paid(&key)).await;
        let outcome = app.until_outcome("stripe", &key, "payout").await;
        assert_eq!(
            (
                &outcome["result"],
                &outcome["decided_by"],
                &outcome["attempts"],
                &outcome["resource"]
            ),
            (
                &json!("succeeded"),
                &json!("probe"),
                &json!(1),
                &json!("pay_7")
            ),
        );
        let history = history(&app, &key).await;
        assert_eq!(
            history,
            [format!("unknown: {error}"), "probe: applied".into()]
        );
    }
    assert_eq!(payments.applied(), [1; 8], "each once");
    assert_eq!(payments.calls().len(), 8);
    assert_eq!(
        metric(&app, "oncehook_calls_uncertain_total").await,
        Some(8.0)
    );
    assert_eq!(metric(&app, "oncehook_probes_total").await, Some(8.0));
    app.db.verify().await;
}

#[tokio::test]
async fn what_is_absent_is_sent_again_once_the_call_has_landed_and_not_before() {
    let payments = Payments::start().await;
    payments.next([Manner::Says(Reply::cut(), Applies::No)]);
    let app = payments.probed("\"100ms\"", "lease = \"2m\"").start().await;
    put(&app, &paid("evt_1")).await;
    // It is asked more often than the schedule says, since "absent" was said too early.
    payments.until_probes(1).await;
    until("the first answer is written", async || {
        history(&app, "evt_1").await.len() == 2
    })
    .await;
    due(&app.db).await;
    payments.until_probes(2).await;
    until("the second answer is written", async || {
        history(&app, "evt_1").await.len() == 3
    })
    .await;
    let early = "probe: absent, but the call may still be under way";
    assert_eq!(history(&app, "evt_1").await[1..], [early, early]);
    let uncertain = until_uncertain(&app, "evt_1").await;
    assert_eq!(
        uncertain["run_at"], uncertain["in_flight_until"],
        "it is asked when the call has landed"
    );
    assert_eq!(payments.calls().len(), 1);
    app.db.verify().await;
    land(&app.db).await;
    due(&app.db).await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (
            &outcome["result"],
            &outcome["decided_by"],
            &outcome["attempts"]
        ),
        (&json!("succeeded"), &json!("handler"), &json!(2))
    );
    let calls = payments.calls();
    assert_eq!(calls, [outcome["effect_key"].as_str().unwrap(); 2]);
    assert_eq!(payments.applied(), [1]);
    app.db.verify().await;
}

#[tokio::test]
async fn a_definite_answer_is_what_it_was() {
    let payments = Payments::start().await;
    let app = payments.probed("\"100ms\"", "").start().await;
    payments.next([
        Manner::Says(Reply::status(409), Applies::No),
        Manner::Says(Reply::status(425), Applies::No),
        Manner::Says(Reply::status(429), Applies::No),
    ]);
    put(&app, &paid("evt_1")).await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&json!("succeeded"), &json!(4))
    );
    payments.next([Manner::Says(Reply::status(422), Applies::No)]);
    put(&app, &paid("evt_2")).await;
    let outcome = app.until_outcome("stripe", "evt_2", "payout").await;
    assert_eq!(outcome["result"], "dead");
    assert!(payments.probes().is_empty());
    assert_eq!(app.db.count("delivery").await, 0);
    app.db.verify().await;
}

#[tokio::test]
async fn who_cannot_tell_is_asked_as_the_schedule_says_and_then_a_person_is() {
    let payments = Payments::start().await;
    payments.next([Manner::Says(Reply::status(500), Applies::Yes)]);
    payments.next_probes([
        Reply::status(503),
        says(r#"{"state":"unknown","reason":"being done"}"#),
        says("<html>"),
        Reply::status(404),
        Reply::cut(),
    ]);
    let times = "\"10ms\", \"20ms\", \"30ms\", \"40ms\", \"50ms\"";
    let app = payments.probed(times, "").start().await;
    put(&app, &paid("evt_1")).await;
    let uncertain = until_for_people(&app, "evt_1").await;
    assert_eq!(uncertain["probes"], 5);
    assert_eq!(
        history(&app, "evt_1").await,
        [
            "unknown: HTTP 500: result unknown",
            "probe: cannot tell: HTTP 503 to the probe",
            "probe: cannot tell: being done",
            "probe: cannot tell: the answer to the probe is not {\"state\": \"applied\" | \"absent\" | \"unknown\"}",
            "probe: cannot tell: HTTP 404 to the probe",
            "probe: cannot tell: the probe was not answered",
        ]
    );
    assert_eq!(payments.calls().len(), 1);
    // It stands where people look.
    app.until_logged("a person must decide").await;
    assert_eq!(app.output().matches("a person must decide").count(), 1);
    until_metric(&app, "oncehook_deliveries_uncertain_for_people", |n| {
        n > 0.0
    })
    .await;
    assert_eq!(
        metric(&app, "oncehook_deliveries_uncertain").await,
        Some(1.0)
    );
    assert_eq!(timeline(&app, "evt_1").await["state"], "uncertain");
    let (_, page) = app.get("/v1/events?state=uncertain").await;
    assert_eq!(page["events"][0]["key"], "evt_1");
    let listed = oncehook(&app.config(), &["events", "--state", "uncertain"], &[]).await;
    assert!(listed.stdout.contains("evt_1"), "{}", listed.said());
    let shown = oncehook(&app.config(), &["show", "stripe", "evt_1"], &[]).await;
    let said = shown.said();
    for part in [
        "5 probes, a person must decide",
        "resolve --handler payout --as succeeded|failed|retry|dead|probe --reason '...' stripe evt_1",
        uncertain["effect_key"].as_str().unwrap(),
    ] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
    app.db.verify().await;
}

#[tokio::test]
async fn a_404_says_absent_only_where_that_is_configured() {
    let payments = Payments::start().await;
    payments.next([Manner::Says(Reply::status(500), Applies::No)]);
    payments.next_probes([Reply::status(404)]);
    let url = payments.receiver.url("/by-key/{effect_key}");
    let lines = format!(
        "on_unknown = \"probe\"\nprobe = {{ url = {url:?}, after = [\"1h\"], not_found = \"absent\", method = \"POST\" }}"
    );
    let app = payments.app(&lines).start().await;
    put(&app, &paid("evt_1")).await;
    until_uncertain(&app, "evt_1").await;
    land(&app.db).await;
    due(&app.db).await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(outcome["result"], "succeeded");
    assert_eq!(payments.probes()[0].method, "POST");
    assert_eq!((payments.calls().len(), payments.applied()), (2, vec![1]));
    app.db.verify().await;
}

#[tokio::test]
async fn a_probe_is_signed_apart_from_a_call_and_no_transaction_is_open_meanwhile() {
    let payments = Payments::start().await;
    payments.next([Manner::Says(Reply::status(500), Applies::Yes)]);
    let answer = Gate::closed();
    payments.next_probes([
        says(r#"{"state":"applied","result":"failed","reason":"no cover"}"#).behind(&answer),
    ]);
    let app = payments.probed("\"100ms\"", "").start().await;
    put(&app, &paid("evt_1")).await;
    payments.until_probes(1).await;
    let probe = payments.probes().remove(0);
    assert_eq!((probe.method.as_str(), probe.body.len()), ("GET", 0));
    let header = |name: &str| probe.header(name).unwrap_or_else(|| panic!("no {name}"));
    let id = format!("probe_{}", header("idempotency-key"));
    assert_eq!(header("webhook-id"), id);
    let at_s: i64 = header("webhook-timestamp").parse().unwrap();
    let [_, _, (_, expected)] = signer::standard_webhooks(SECRET, &id, at_s, b"");
    assert_eq!(header("webhook-signature"), expected);
    for (name, value) in [
        ("oncehook-source", "stripe"),
        ("oncehook-event-key", "evt_1"),
        ("oncehook-run", "1"),
        ("oncehook-attempt", "1"),
    ] {
        assert_eq!(header(name), value, "{name}");
    }
    // While the answer stays out, whatever was open comes to its end.
    let then: SystemTime = app.db.one("SELECT clock_timestamp()").await;
    until("no transaction is open for a probe's sake", async || {
        let sql =
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND xact_start < $1";
        app.db.rows(sql, &[&then]).await.is_empty()
    })
    .await;
    assert!(open(&app, "evt_1").await.is_some());
    answer.open();
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (
            &outcome["result"],
            &outcome["decided_by"],
            &outcome["reason"]
        ),
        (&json!("failed"), &json!("probe"), &json!("no cover"))
    );
    app.db.verify().await;
}

#[tokio::test]
async fn without_a_probe_a_person_is_asked_at_once_and_nothing_is_sent_again() {
    let payments = Payments::start().await;
    let app = payments
        .app("on_unknown = \"hold\"\ntimeout = \"400ms\"\nlease = \"30s\"\nconcurrency = 1")
        .start()
        .await;
    let manners = unknown(Applies::Yes);
    let count = manners.len();
    for (n, (manner, error)) in manners.into_iter().enumerate() {
        payments.next([manner]);
        let key = format!("evt_{n}");
        put(&app, &paid(&key)).await;
        until_for_people(&app, &key).await;
        assert_eq!(history(&app, &key).await, [format!("unknown: {error}")]);
    }
    assert_eq!(app.output().matches("a person must decide").count(), count);
    // Neither time nor a restart, a look at everything nor a full sweep sends one of them again.
    land(&app.db).await;
    let mut app = app;
    app.restart().await;
    put(&app, &paid("evt_good")).await;
    app.until_outcome("stripe", "evt_good", "payout").await;
    until_metric(&app, "oncehook_deliveries_uncertain_for_people", |n| {
        n > 7.0
    })
    .await;
    assert_eq!(payments.calls().len(), count + 1);
    assert_eq!(payments.applied(), [1; 9]);
    assert!(payments.probes().is_empty());
    app.db.verify().await;
}

#[tokio::test]
async fn the_word_of_who_asked_before_another_did_releases_nothing() {
    let payments = Payments::start().await;
    payments.next([Manner::Says(Reply::status(500), Applies::No)]);
    let late = Gate::closed();
    payments.next_probes([
        says(r#"{"state":"absent"}"#).behind(&late),
        says(r#"{"state":"unknown"}"#),
    ]);
    let mut app = payments.probed("\"1h\", \"2h\"", "").start().await;
    put(&app, &paid("evt_1")).await;
    until_uncertain(&app, "evt_1").await;
    let second = app.another_node().await;
    land(&app.db).await;
    due(&app.db).await;
    payments.until_probes(1).await;
    // The first who asked is slow, so that the other asks too.
    due(&app.db).await;
    payments.until_probes(2).await;
    until("the second answer is written", async || {
        history(&second, "evt_1").await.len() == 2
    })
    .await;
    late.open();
    until("the first answer is written", async || {
        history(&second, "evt_1").await.len() == 3
    })
    .await;
    let found = open(&app, "evt_1").await;
    let found = found.map(|open| (open["state"].clone(), open["probes"].clone()));
    assert_eq!(found, Some((json!("uncertain"), json!(2))), "released");
    assert_eq!(payments.calls().len(), 1);
    app.db.verify().await;
}
