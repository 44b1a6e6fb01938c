//! Several questions at once: of which call an answer is, and whose questions wait for whose.

use serde_json::json;

use crate::crash::{paid, put};
use crate::support::inbox::event;
use crate::support::{Gate, Reply, until};

use super::{Applies, Manner, Payments, due, history, land, open, says, until_uncertain};

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
