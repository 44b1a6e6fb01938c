//! `function` handlers: your own code in the engine's transaction.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncehook::dispatch::{
    Answer, Delivered, Function, HandlerError, HandlerKind, HandlerSpec, Work,
};
use serde_json::json;

use crate::dispatch::LEDGER;
use crate::dispatch::sql::{DEFERRED, a_deferred_constraint};
use crate::support::inbox::{Inbox, event, every, quick};

/// Books, then does what the event's type says.
struct Booker;

#[async_trait]
impl Function for Booker {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        work.execute_prepared(
            "INSERT INTO app.ledger VALUES ($1, $2, 1, $3, $4)",
            &[&event.id, &event.key, &event.effect_key, &event.attempt],
        )
        .await?;
        match (
            event.event_type.as_deref().unwrap_or_default(),
            event.attempt,
        ) {
            ("f.error", 1) => Err("something broke".into()),
            ("f.panic", 1) => panic!("a bug"),
            ("f.retry", 1) => Ok(Answer::Retry(Some(Duration::from_millis(1)), "busy".into())),
            ("f.swallowed", 1) => {
                // The error is dropped, the savepoint is broken all the same.
                drop(work.execute("SELECT 1 / 0", &[]).await);
                Ok(Answer::Done)
            }
            ("f.slow", 1) => {
                tokio::time::sleep(Duration::from_secs(30)).await;
                Ok(Answer::Done)
            }
            ("f.commit", _) => {
                work.execute("COMMIT", &[]).await?;
                Ok(Answer::Done)
            }
            ("f.blocks", 1) => {
                // Our own time-out cannot end what never awaits; PostgreSQL's ends the session.
                tokio::task::block_in_place(|| std::thread::sleep(Duration::from_secs(6)));
                Ok(Answer::Done)
            }
            ("b.deferred", _) => {
                work.execute("INSERT INTO app.once VALUES (1), (1)", &[])
                    .await?;
                Ok(Answer::Done)
            }
            ("b.good", _) => {
                work.execute("SELECT nextval('app.good_runs')", &[]).await?;
                Ok(Answer::Done)
            }
            ("f.permanent", _) => Ok(Answer::Permanent("no such account".into())),
            ("f.skip", _) => Ok(Answer::Skip("stale".into())),
            _ => Ok(Answer::DoneWith("booking".into())),
        }
    }
}

fn booker() -> HandlerSpec {
    let mut spec = quick(HandlerSpec::new(
        "ledger",
        every(),
        HandlerKind::Function(Arc::new(Booker)),
    ));
    spec.timeout = Duration::from_millis(500);
    spec
}

#[tokio::test]
async fn what_a_function_writes_commits_with_its_outcome_or_not_at_all() {
    let inbox = Inbox::start(LEDGER, vec![booker()]).await;
    let cases = [
        ("f.good", "succeeded", 1, 1_i64),
        ("f.error", "succeeded", 2, 1),
        ("f.panic", "succeeded", 2, 1),
        ("f.retry", "succeeded", 2, 1),
        ("f.swallowed", "succeeded", 2, 1),
        ("f.slow", "succeeded", 2, 1),
        ("f.permanent", "dead", 1, 0),
        ("f.skip", "skipped", 1, 1),
    ];
    for (kind, ..) in cases {
        inbox.put(&event(kind, kind, json!({}))).await;
    }
    for (kind, result, attempts, booked) in cases {
        let (found, timeline) = inbox.until_outcome(kind, "ledger").await;
        assert_eq!(found, result, "{kind}: {:?}", timeline.attempts);
        assert_eq!(
            timeline.outcomes[0].attempts, attempts,
            "{kind}: {:?}",
            timeline.attempts
        );
        let count: i64 = inbox
            .db
            .one(&format!(
                "SELECT count(*) FROM app.ledger WHERE key = '{kind}'"
            ))
            .await;
        assert_eq!(count, booked, "{kind}");
    }
    assert_eq!(inbox.db.count("delivery").await, 0);
}

#[tokio::test]
async fn a_function_that_ends_the_transaction_is_named_and_dead() {
    let inbox = Inbox::start(LEDGER, vec![booker()]).await;
    inbox.put(&event("evt_bad", "f.commit", json!({}))).await;
    inbox.put(&event("evt_good", "f.good", json!({}))).await;
    let (result, timeline) = inbox.until_outcome("evt_bad", "ledger").await;
    assert_eq!(result, "dead");
    let reason = timeline.outcomes[0].reason.clone().unwrap();
    assert!(
        reason.contains("ledger") && reason.contains("ended the engine's transaction"),
        "{reason}"
    );
    assert_eq!(
        inbox.until_outcome("evt_good", "ledger").await.0,
        "succeeded"
    );
}

#[tokio::test]
async fn a_deferred_constraint_fails_in_the_savepoint_of_its_event() {
    a_deferred_constraint(&format!("{LEDGER}{DEFERRED}"), booker()).await;
}

// Blocking in place, on a runtime of several threads: the others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_that_sleeps_past_the_sessions_time_out_has_no_effect_and_runs_again() {
    let inbox = Inbox::start(LEDGER, vec![booker()]).await;
    inbox.put(&event("evt_1", "f.blocks", json!({}))).await;
    let (result, timeline) = inbox.until_outcome("evt_1", "ledger").await;
    assert_eq!(result, "succeeded");
    assert_eq!(timeline.outcomes[0].attempts, 2);
    let verdicts: Vec<&str> = timeline
        .attempts
        .iter()
        .map(|a| a.verdict.as_str())
        .collect();
    assert_eq!(verdicts, ["lost"]);
    let tries: Vec<i32> = inbox.db.all("SELECT attempt FROM app.ledger").await;
    assert_eq!(tries, [2]);
    // The connection was replaced.
    inbox.put(&event("evt_2", "f.good", json!({}))).await;
    assert_eq!(inbox.until_outcome("evt_2", "ledger").await.0, "succeeded");
}
