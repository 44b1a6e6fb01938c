//! A person's decision: `oncehook resolve` and its route.

use serde_json::{Value, json};

use crate::crash::{paid, put, timeline};
use crate::support::{Gate, Ran, Reply, TestApp, oncehook, until};

use super::{Applies, Manner, Payments, land, open, until_for_people};

/// A payout that waits for a person; the call was not applied.
async fn waiting(payments: &Payments) -> TestApp {
    payments.next([Manner::Says(Reply::cut(), Applies::No)]);
    let app = payments.app("on_unknown = \"hold\"").start().await;
    put(&app, &paid("evt_1")).await;
    until_for_people(&app, "evt_1").await;
    app
}

async fn resolve(app: &TestApp, decision: &str, more: &[&str]) -> Ran {
    let mut args = vec![
        "resolve",
        "stripe",
        "evt_1",
        "--handler",
        "payout",
        "--as",
        decision,
    ];
    args.extend(["--reason", "their support says so"]);
    args.extend(more);
    oncehook(&app.config(), &args, &[]).await
}

#[tokio::test]
async fn what_a_person_decides_ends_it_and_stands_in_the_audit_with_before_and_after() {
    for (decision, evidence, resource) in [
        ("succeeded", Some("po_81"), json!("po_81")),
        ("failed", None, json!(null)),
        ("dead", Some("their books"), json!(null)),
    ] {
        let payments = Payments::start().await;
        let app = waiting(&payments).await;
        let effect_key = open(&app, "evt_1").await.unwrap()["effect_key"].clone();
        let more: Vec<&str> = evidence
            .into_iter()
            .flat_map(|text| ["--evidence", text])
            .collect();
        let ran = resolve(&app, decision, &more).await;
        assert_eq!(ran.code, Some(0), "{}", ran.said());
        assert!(
            ran.stdout
                .starts_with(&format!("{decision}: stripe evt_1 payout run 1"))
        );
        let all = timeline(&app, "evt_1").await;
        let outcome = &all["outcomes"][0];
        assert_eq!(
            (
                &outcome["result"],
                &outcome["decided_by"],
                &outcome["reason"],
                &outcome["resource"],
                &outcome["attempts"]
            ),
            (
                &json!(decision),
                &json!("operator"),
                &json!("their support says so"),
                &resource,
                &json!(1)
            )
        );
        assert_eq!(all["audit"][0]["action"], "event.resolve");
        let before: String = app.db.one("SELECT before::text FROM oncehook.audit").await;
        let before: Value = serde_json::from_str(&before).unwrap();
        assert_eq!(
            (
                &before["state"],
                &before["handler"],
                &before["run"],
                &before["effect_key"]
            ),
            (
                &json!("uncertain"),
                &json!("payout"),
                &json!(1),
                &effect_key
            )
        );
        let after: String = app.db.one("SELECT after::text FROM oncehook.audit").await;
        let after: Value = serde_json::from_str(&after).unwrap();
        assert_eq!(
            after,
            json!({ "handler": "payout", "run": 1, "as": decision, "evidence": evidence })
        );
        assert_eq!(payments.calls().len(), 1);
        app.db.verify().await;
    }
}

#[tokio::test]
async fn a_retry_keeps_the_effect_key_and_is_refused_while_the_call_may_be_under_way() {
    let payments = Payments::start().await;
    let app = waiting(&payments).await;
    let args = [
        "replay",
        "stripe",
        "evt_1",
        "--handler",
        "payout",
        "--reason",
        "x",
    ];
    let ran = oncehook(&app.config(), &args, &[]).await;
    assert!(
        ran.stderr.contains("see `oncehook resolve`"),
        "{}",
        ran.said()
    );
    let ran = resolve(&app, "retry", &[]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.said());
    assert!(
        ran.stderr.contains("the call may still be under way until"),
        "{}",
        ran.said()
    );
    let body = json!({ "handler": "payout", "as": "retry", "reason": "x" });
    let (status, problem) = app.resolve("stripe", "evt_1", &body).await;
    assert_eq!(status, 409, "{problem}");
    assert_eq!(app.db.count("audit").await, 0);
    assert_eq!(payments.calls().len(), 1);
    land(&app.db).await;
    let body = json!({ "handler": "payout", "as": "retry", "reason": "never arrived", "evidence": "ticket 9" });
    let (status, resolved) = app.resolve("stripe", "evt_1", &body).await;
    assert_eq!(
        (status.as_u16(), &resolved["as"]),
        (200, &json!("retry")),
        "{resolved}"
    );
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["run"], &outcome["attempts"]),
        (&json!("succeeded"), &json!(1), &json!(2))
    );
    let key = outcome["effect_key"].as_str().unwrap();
    assert_eq!(payments.calls(), [key, key]);
    assert_eq!(resolved["effect_key"], key);
    assert_eq!(payments.applied(), [1]);
    app.db.verify().await;
}

#[tokio::test]
async fn what_is_not_uncertain_is_refused_with_what_to_do_instead() {
    let payments = Payments::start().await;
    let out = Gate::closed();
    payments.next([
        Manner::Holds(out.clone(), Applies::Yes),
        Manner::Says(
            Reply::status(429).header("Retry-After", "3600"),
            Applies::No,
        ),
    ]);
    let app = payments.app("on_unknown = \"hold\"").start().await;
    let ran = resolve(&app, "dead", &[]).await;
    assert!(ran.stderr.contains("has no event"), "{}", ran.said());
    put(&app, &paid("evt_1")).await;
    payments.until_calls(1).await;
    let ran = resolve(&app, "dead", &[]).await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("it is being handled"), "{}", ran.said());
    out.open();
    app.until_outcome("stripe", "evt_1", "payout").await;
    let ran = resolve(&app, "dead", &[]).await;
    assert!(
        ran.stderr.contains("nothing is open") && ran.stderr.contains("`replay`"),
        "{}",
        ran.said()
    );
    put(&app, &paid("evt_2")).await;
    until("it is put off", async || {
        app.db
            .count("delivery WHERE state = 'ready' AND failures = 1")
            .await
            == 1
    })
    .await;
    let args = [
        "resolve",
        "stripe",
        "evt_2",
        "--handler",
        "payout",
        "--as",
        "dead",
        "--reason",
        "x",
    ];
    let ran = oncehook(&app.config(), &args, &[]).await;
    assert!(ran.stderr.contains("runs by itself"), "{}", ran.said());
    assert_eq!(app.db.count("audit").await, 0);
    app.db.verify().await;
}

#[tokio::test]
async fn of_two_people_who_decide_at_once_one_is_told_that_nothing_is_open() {
    let payments = Payments::start().await;
    let app = waiting(&payments).await;
    let decide = async |word: &str| {
        let body = json!({ "handler": "payout", "as": word, "reason": "x" });
        app.resolve("stripe", "evt_1", &body).await
    };
    let (one, other) = tokio::join!(decide("succeeded"), decide("dead"));
    let mut statuses = [one.0, other.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{one:?} {other:?}");
    assert_eq!(
        (app.db.count("outcome").await, app.db.count("audit").await),
        (1, 1)
    );
    app.db.verify().await;
}
