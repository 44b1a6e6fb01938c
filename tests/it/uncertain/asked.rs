//! Who is asked: several questions at once, and a person who has a receiver asked again.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::crash::{paid, put, timeline};
use crate::support::inbox::event;
use crate::support::{Gate, Reply, TestApp, oncehook, until};

use super::{
    Applies, Manner, Payments, due, history, land, open, says, until_for_people, until_uncertain,
};

#[tokio::test]
async fn the_refusal_of_an_earlier_call_does_not_end_the_next_one() {
    let payments = Payments::start().await;
    payments.next([
        Manner::Says(Reply::status(500), Applies::No),
        Manner::Says(Reply::status(500), Applies::Yes),
    ]);
    let late = Gate::closed();
    payments.next_probes([
        says(r#"{"state":"applied","result":"failed","reason":"no cover"}"#).behind(&late),
        says(r#"{"state":"absent"}"#),
    ]);
    let app = payments.probed("\"1h\", \"2h\"", "").start().await;
    put(&app, &paid("evt_1")).await;
    until_uncertain(&app, "evt_1").await;
    land(&app.db).await;
    due(&app.db).await;
    payments.until_probes(1).await;
    // The first answer is slow. Another asks, and has the call sent again.
    due(&app.db).await;
    payments.until_calls(2).await;
    until("the second call is uncertain", async || {
        history(&app, "evt_1").await.len() == 3
    })
    .await;
    late.open();
    until("the first answer is written", async || {
        history(&app, "evt_1").await.len() == 4
    })
    .await;
    assert_eq!(
        history(&app, "evt_1").await,
        [
            "unknown: HTTP 500: result unknown",
            "probe: absent",
            "unknown: HTTP 500: result unknown",
            "probe: refused: no cover",
        ]
    );
    let state = open(&app, "evt_1").await.map(|open| open["state"].clone());
    assert_eq!(state, Some(json!("uncertain")), "an earlier call's no");
    due(&app.db).await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["decided_by"]),
        (&json!("succeeded"), &json!("probe"))
    );
    assert_eq!(payments.applied(), [1]);
    app.db.verify().await;
}

#[tokio::test]
async fn a_receiver_that_does_not_say_what_it_knows_keeps_nobody_from_asking_another() {
    /// More than a node asks at once.
    const SLOW: usize = 20;
    let (slow, quick) = (Payments::start().await, Payments::start().await);
    let silent = Gate::closed();
    slow.next(vec![Manner::Says(Reply::cut(), Applies::Yes); SLOW]);
    slow.next_probes(vec![says(r#"{"state":"applied"}"#).behind(&silent); SLOW]);
    quick.next([Manner::Says(Reply::cut(), Applies::Yes)]);
    let patient = "timeout = \"1m\"\nlease = \"2m\"\nbreaker = false";
    let app = slow.probed(
        "\"1h\"",
        &format!("events = [\"stripe:charge.*\"]\n{patient}"),
    );
    let orders = quick.probe_lines("\"100ms\"", "events = [\"stripe:order.*\"]");
    let app = quick.called_by("quick", &orders, app).start().await;
    for n in 0..SLOW {
        put(&app, &paid(&format!("evt_{n}"))).await;
    }
    until("all of them are uncertain", async || {
        app.db.count("delivery WHERE state = 'uncertain'").await == 20
    })
    .await;
    due(&app.db).await;
    slow.until_probes(8).await;
    let order = event("evt_quick", "order.paid", json!({ "id": "or_1" }));
    put(&app, &order).await;
    let outcome = app.until_outcome("stripe", "evt_quick", "quick").await;
    assert_eq!(outcome["decided_by"], "probe");
    assert_eq!(slow.probes().len(), 8, "half of what a node asks at once");
    silent.open();
    until("the slow one's are ended as well", async || {
        due(&app.db).await;
        app.db.count("delivery").await == 0
    })
    .await;
    app.db.verify().await;
}

/// Says `probe` of the only event by the route.
async fn ask(app: &TestApp) -> (u16, Value) {
    let body = json!({ "handler": "payout", "as": "probe", "reason": "it answers again" });
    let (status, answer) = app.resolve("stripe", "evt_1", &body).await;
    (status.as_u16(), answer)
}

#[tokio::test]
async fn a_person_has_the_receiver_asked_again_as_often_as_at_first() {
    let payments = Payments::start().await;
    payments.next([Manner::Says(Reply::cut(), Applies::Yes)]);
    let down = || vec![Reply::status(503); 2];
    payments.next_probes(down());
    let app = payments.probed("\"10ms\", \"4s\"", "").start().await;
    put(&app, &paid("evt_1")).await;
    until_for_people(&app, "evt_1").await;
    payments.next_probes(down());
    let before = Instant::now();
    let (status, said) = ask(&app).await;
    assert_eq!((status, &said["as"]), (200, &json!("probe")), "{said}");
    payments.until_probes(4).await;
    let waits = until_for_people(&app, "evt_1").await;
    assert_eq!(waits["probes"], 2, "{waits}");
    let asked = payments.probes();
    let later = asked[3].at - before;
    assert!(
        later >= Duration::from_secs(4),
        "as late as at first, not {later:?}"
    );
    // By the command, and the receiver knows at last.
    let args = [
        "resolve",
        "stripe",
        "evt_1",
        "--handler",
        "payout",
        "--as",
        "probe",
    ];
    let args = [&args[..], &["--reason", "they say that it is mended"]].concat();
    let ran = oncehook(&app.config(), &args, &[]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    assert!(
        ran.stdout
            .starts_with("asked again: stripe evt_1 payout run 1")
    );
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["decided_by"]),
        (&json!("succeeded"), &json!("probe"))
    );
    assert_eq!((payments.probes().len(), payments.applied()), (5, vec![1]));
    let all = timeline(&app, "evt_1").await;
    let decided: Vec<&Value> = all["audit"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| &line["as"])
        .collect();
    assert_eq!(decided, [&json!("probe"), &json!("probe")]);
    let shown = oncehook(&app.config(), &["show", "stripe", "evt_1"], &[]).await;
    assert!(
        shown
            .said()
            .contains("api:local event.resolve as probe: it answers again"),
        "{}",
        shown.said()
    );
    app.db.verify().await;
}

#[tokio::test]
async fn who_cannot_be_asked_is_not_and_a_handler_that_got_a_probe_since_is() {
    let payments = Payments::start().await;
    payments.next([Manner::Says(Reply::cut(), Applies::Yes)]);
    let mut app = payments.app("on_unknown = \"hold\"").start().await;
    put(&app, &paid("evt_1")).await;
    until_for_people(&app, "evt_1").await;
    let (status, said) = ask(&app).await;
    assert_eq!(status, 409, "it cannot be asked: {said}");
    let detail = said["detail"].as_str().unwrap();
    assert!(detail.contains("on_unknown is \"hold\""), "{detail}");
    assert_eq!(app.db.count("audit").await, 0);
    let lines = payments.probe_lines("\"1h\"", "");
    let toml = app.toml().replace("on_unknown = \"hold\"", &lines);
    app.reconfigure(&toml);
    app.restart().await;
    assert_eq!(ask(&app).await.0, 200);
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(outcome["decided_by"], "probe");
    assert_eq!(payments.applied(), [1]);
    // What is finished is not asked about.
    assert_eq!(ask(&app).await.0, 409);
    app.db.verify().await;
}
