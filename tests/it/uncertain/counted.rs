//! Where an uncertain delivery is counted, and where not.

use serde_json::json;

use crate::crash::{paid, put, timeline};
use crate::support::inbox::event;
use crate::support::{Gate, Reply, oncehook, until};

use super::{Applies, Manner, Payments, until_for_people};

/// The lists say how much waits for an answer or for a person, by the command as by the API.
#[tokio::test]
async fn handlers_are_listed_with_what_is_uncertain_and_what_is_held() {
    let payments = Payments::start().await;
    payments.next([
        Manner::Says(Reply::cut(), Applies::No),
        Manner::Says(Reply::status(422), Applies::No),
    ]);
    let lines = "on_unknown = \"hold\"\nlane = \"entity\"\nlane_on_dead = \"hold\"";
    let app = payments.app(lines).start().await;
    let about = |key: &str, object: &str| event(key, "charge.succeeded", json!({ "id": object }));
    put(&app, &about("evt_1", "ch_1")).await;
    until_for_people(&app, "evt_1").await;
    put(&app, &about("evt_2", "ch_2")).await;
    until("the second is held", async || {
        timeline(&app, "evt_2").await["state"] == "held"
    })
    .await;
    let listed = oncehook(&app.config(), &["handlers", "list"], &[]).await;
    assert!(
        listed
            .stdout
            .contains("running, 0 due, 0 under way, 1 uncertain, 1 held"),
        "{}",
        listed.said()
    );
    let as_json = oncehook(&app.config(), &["handlers", "list", "--json"], &[]).await;
    let as_json: serde_json::Value = serde_json::from_str(&as_json.stdout).unwrap();
    let (_, by_api) = app.get("/v1/handlers").await;
    for handlers in [as_json, by_api] {
        let counts = (&handlers[0]["uncertain"], &handlers[0]["held"]);
        assert_eq!(counts, (&json!(1), &json!(1)), "{handlers}");
    }
}

/// `max_in_flight` is of leases: a call whose answer was not waited for has none any more, though it may still be
/// at its receiver.
#[tokio::test]
async fn a_call_whose_result_is_unknown_leaves_its_place_under_the_cap_to_the_next() {
    let payments = Payments::start().await;
    payments.next([Manner::Holds(Gate::closed(), Applies::Yes)]);
    let lines = "on_unknown = \"hold\"\ntimeout = \"1s\"\nmax_in_flight = 1";
    let app = payments.app(lines).start().await;
    put(&app, &paid("evt_1")).await;
    until_for_people(&app, "evt_1").await;
    put(&app, &paid("evt_2")).await;
    let outcome = app.until_outcome("stripe", "evt_2", "payout").await;
    assert_eq!(outcome["result"], "succeeded");
    let out = "delivery WHERE state = 'uncertain' AND in_flight_until > now()";
    assert_eq!(app.db.count(out).await, 1, "the first may still be out");
    app.db.verify().await;
}
