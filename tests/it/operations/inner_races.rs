//! What may begin another run of an operation, and what it meets there.

use std::sync::Arc;

use oncehook::store::{Settings, Store};
use uuid::Uuid;

use crate::support::{Action, PgProxy, TestDb, backend_pid};

use super::wire::{Client, app, booking, send};

const REFUSED: &str = r#"{"amount": -1}"#;

/// What lies in the way of another run, done by hand.
const IN_THE_WAY: [(&str, &str); 6] = [
    (
        "a person decided",
        "UPDATE oncehook.outcome SET decided_by = 'operator'",
    ),
    ("it is no dead letter", "UPDATE oncehook.outcome SET result = 'failed'"),
    (
        "the key has expired",
        "UPDATE oncehook.event_key SET expires_at = now() - interval '1 second'",
    ),
    (
        "the key names a later intent",
        "UPDATE oncehook.event_key SET event_id = oncehook.uuid7(now()), generation = 1",
    ),
    (
        "a late answer says that it took effect",
        "INSERT INTO oncehook.attempt (event_id, handler_id, run, lease_token, started_at, ended_at, verdict, answer)
         SELECT event_id, handler_id, run, gen_random_uuid(), now(), now(), 'evidence', 'succeeded' FROM oncehook.outcome",
    ),
    ("its payload is gone", "DELETE FROM oncehook.request"),
];

#[tokio::test]
async fn another_run_begins_after_a_failure_without_effect_and_nothing_else() {
    let mut app = app(&booking("pay", "wait = \"20s\"")).start().await;
    let answer = Client::of(&app).submit("pay", "k", REFUSED).await;
    assert_eq!(answer.status, 500, "{answer:?}");
    assert!(app.stop().await.success());
    let event: Uuid = app.db.one("SELECT event_id FROM oncehook.outcome").await;
    let handler: i32 = app.db.one("SELECT handler_id FROM oncehook.outcome").await;
    let begun = async |db: &TestDb, run: i16| {
        let store = Store::new(Settings::parse(&db.url).unwrap(), 1).unwrap();
        let begun = store.run_again(event, run, handler).await.unwrap();
        assert_eq!(db.count("delivery").await, i64::from(begun));
        begun
    };
    for (why, sql) in IN_THE_WAY {
        let db = app.db.copy().await;
        db.execute(sql).await;
        assert!(!begun(&db, 1).await, "{why}");
    }
    let db = Arc::new(app.db.copy().await);
    assert!(!begun(&db, 2).await, "not the run that was told");
    assert!(begun(&db, 1).await);
    let of_run: Vec<i16> = db
        .all("SELECT generation FROM oncehook.delivery WHERE run = 2")
        .await;
    assert_eq!(of_run, [0]);
    db.verify().await;
}

#[tokio::test]
async fn a_renewal_waits_for_a_run_that_begins_and_then_does_not_happen() {
    let app = app(&booking("pay", "wait = \"20s\"")).start().await;
    let client = Client::of(&app);
    let answer = client.submit("pay", "k", REFUSED).await;
    assert_eq!(answer.status, 500, "{answer:?}");
    app.db
        .execute("UPDATE oncehook.event_key SET expires_at = now() - interval '1 second'")
        .await;
    // As a replay does: the key first, then the run.
    let replay = app.db.client().await;
    replay
        .batch_execute("BEGIN; SELECT FROM oncehook.event_key FOR SHARE")
        .await
        .unwrap();
    let pid = backend_pid(&replay).await;
    let intent = client
        .intent("pay", "k", REFUSED)
        .header("Prefer", "respond-async");
    let submitted = tokio::spawn(send(intent));
    app.db.until_blocked_by(pid).await;
    replay
        .batch_execute(
            "INSERT INTO oncehook.delivery (event_id, handler_id, run, run_at)
             SELECT event_id, handler_id, 2, 'infinity' FROM oncehook.outcome; COMMIT",
        )
        .await
        .unwrap();
    let answer = submitted.await.unwrap();
    assert_eq!(app.db.count("event").await, 1, "{answer:?}");
    assert_eq!(answer.status, 202, "{answer:?}");
}

#[tokio::test]
async fn killed_at_the_commit_effect_outcome_and_answer_are_all_there_or_none() {
    for action in [Action::FreezeBefore, Action::FreezeAfter] {
        let db = TestDb::new().await;
        let proxy = PgProxy::start(&db.url).await;
        let url = proxy.url(&db.name);
        let toml = booking("pay", "wait = \"20s\"");
        let mut app = app(&toml).on(db).database_url(url).start().await;
        proxy.arm_after("into oncehook.response", "commit", action);
        let lost = tokio::spawn(
            Client::of(&app)
                .intent("pay", "k", r#"{"amount": 5}"#)
                .send(),
        );
        proxy.until_fired(1).await;
        app.kill9();
        assert!(lost.await.unwrap().is_err());
        proxy.thaw();
        // One snapshot: what the proxy still passes on may be committed between two.
        let counts: Vec<i64> = app
            .db
            .one(
                "SELECT ARRAY[(SELECT count(*) FROM app.payment), (SELECT count(*) FROM oncehook.outcome),
                              (SELECT count(*) FROM oncehook.response)]",
            )
            .await;
        assert!(counts == [0, 0, 0] || counts == [1, 1, 1], "{counts:?}");
        let config = format!("[database]\nurl = {:?}\n{toml}", app.db.url);
        let node = app.another_node_with(&config).await;
        let answer = Client::at(node.api)
            .submit("pay", "k", r#"{"amount": 5}"#)
            .await;
        assert!(matches!(answer.status, 201 | 202), "{answer:?}");
        Client::at(node.api)
            .until_state("pay", "k", "completed")
            .await;
        assert_eq!(app.db.count("app.payment").await, 1);
        app.db.verify().await;
    }
}
