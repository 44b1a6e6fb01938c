//! A handler whose `on_unknown` is changed while results are unknown.

use serde_json::json;

use crate::crash::{end_leases, metric, paid, put, until_metric};
use crate::support::{Gate, Reply};

use super::{Applies, Manner, Payments, due, history, until_for_people, until_uncertain};

/// The metric of what only people can decide.
const FOR_PEOPLE: &str = "oncehook_deliveries_uncertain_for_people";

#[tokio::test]
async fn what_a_handler_that_repeats_calls_now_had_left_uncertain_is_for_people() {
    let payments = Payments::start().await;
    let answer = Gate::closed();
    payments.next([
        Manner::Holds(answer.clone(), Applies::Yes),
        Manner::Says(Reply::cut(), Applies::No),
    ]);
    let lines = "timeout = \"30s\"\nlease = \"35s\"";
    let mut app = payments.probed("\"1h\", \"2h\"", lines).start().await;
    // Of one the answer is still out when its lease ends, of the other nothing will come.
    put(&app, &paid("evt_1")).await;
    payments.until_calls(1).await;
    end_leases(&app.db).await;
    until_uncertain(&app, "evt_1").await;
    put(&app, &paid("evt_2")).await;
    until_uncertain(&app, "evt_2").await;
    let probe = payments.probe_lines("\"1h\", \"2h\"", lines);
    let repeats = format!("on_unknown = \"retry\"\n{lines}");
    let toml = app.toml().replace(&probe, &repeats);
    assert_ne!(toml, app.toml());
    app.reconfigure(&toml);
    app.sighup();
    app.until_logged("configuration reloaded").await;
    assert_eq!(metric(&app, FOR_PEOPLE).await, Some(0.0));
    due(&app.db).await;
    for key in ["evt_1", "evt_2"] {
        until_for_people(&app, key).await;
    }
    until_metric(&app, FOR_PEOPLE, |n| (n - 2.0).abs() < 0.1).await;
    let (_, listed) = app.get("/v1/events?state=uncertain").await;
    assert_eq!(
        listed["events"].as_array().map(Vec::len),
        Some(2),
        "{listed}"
    );
    // A late answer is read all the same; the other one is a person's.
    answer.open();
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["decided_by"]),
        (&json!("succeeded"), &json!("handler"))
    );
    let body = json!({ "handler": "payout", "as": "failed", "reason": "asked them" });
    let (status, resolved) = app.resolve("stripe", "evt_2", &body).await;
    assert_eq!(status, 200, "{resolved}");
    assert_eq!((payments.calls().len(), payments.applied()), (2, vec![1]));
    assert!(
        payments.probes().is_empty(),
        "{:?}",
        history(&app, "evt_1").await
    );
    app.db.verify().await;
}
