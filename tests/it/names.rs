//! Configured names over a database: renames by `was`, retired handlers, names used twice.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use oncehook::dispatch::HandlerSpec;
use oncehook::engine::{Engine, EngineConfig};
use oncehook::provider::Source;
use oncehook::store::{Settings, Store, StoreError};

use crate::dispatch::LEDGER;
use crate::support::inbox::{Inbox, dispatch, event, sql, stripe_source};
use crate::support::{TestDb, until};

async fn engine(
    db: &TestDb,
    sources: Vec<Source>,
    handlers: Vec<HandlerSpec>,
) -> Result<Engine, String> {
    let store = Store::new(Settings::parse(&db.url).unwrap(), 2).unwrap();
    let config = EngineConfig {
        sources,
        handlers,
        ..EngineConfig::default()
    };
    Engine::start(store, config)
        .await
        .map_err(|error| error.to_string())
}

fn renamed(mut source: Source, name: &str, was: Option<&str>) -> Source {
    source.name = name.into();
    source.was = was.map(str::to_owned);
    source
}

#[tokio::test]
async fn a_renamed_source_keeps_its_keys_and_a_renamed_handler_its_effect_keys() {
    let inbox = Inbox::start(LEDGER, vec![sql("ledger", "app.book")]).await;
    inbox
        .put(&event("evt_1", "charge.succeeded", json!({})))
        .await;
    let (_, before) = inbox.until_outcome("evt_1", "ledger").await;
    let mut books = sql("books", "app.book");
    books.was = Some("ledger".into());
    let source = renamed(stripe_source(), "stripe-main", Some("stripe"));
    inbox
        .engine
        .reload(vec![source.clone()], vec![books.clone()])
        .await
        .unwrap();
    let after = inbox
        .engine
        .store()
        .timeline("stripe-main", "evt_1")
        .await
        .unwrap();
    assert_eq!(after.event.event_id, before.event.event_id);
    assert_eq!(after.outcomes[0].handler, "books");
    assert_eq!(after.outcomes[0].effect_key, before.outcomes[0].effect_key);
    // `was` may stay in the file; a second start finds nothing to rename.
    engine(&inbox.db, vec![source], vec![books]).await.unwrap();
}

#[tokio::test]
async fn a_name_that_something_else_once_had_is_refused() {
    let db = TestDb::new().await;
    let old = engine(&db, vec![stripe_source()], vec![]).await.unwrap();
    old.shutdown().await;
    let moved = renamed(stripe_source(), "stripe-eu", Some("stripe"));
    let now = engine(&db, vec![moved], vec![]).await.unwrap();
    // A node that still has the old file must not make a second source of the same sender.
    let error = engine(&db, vec![stripe_source()], vec![])
        .await
        .unwrap_err();
    assert!(error.contains("was renamed to \"stripe-eu\""), "{error}");
    now.shutdown().await;
    assert_eq!(db.count("source").await, 1);
    // Nor one that has the file of between two renames.
    let twice = renamed(stripe_source(), "stripe-world", Some("stripe-eu"));
    engine(&db, vec![twice], vec![])
        .await
        .unwrap()
        .shutdown()
        .await;
    for former in ["stripe", "stripe-eu"] {
        let old = renamed(stripe_source(), former, None);
        let error = engine(&db, vec![old], vec![]).await.unwrap_err();
        assert!(error.contains("was renamed to \"stripe-world\""), "{error}");
    }
    assert_eq!(db.count("source").await, 1);
}

#[tokio::test]
async fn a_retired_handler_ends_its_deliveries_as_cancelled_whenever_they_come() {
    // Nobody dispatches, so the deliveries wait.
    let idle = Inbox::start(LEDGER, vec![]).await;
    let inbox = Inbox::on(
        idle.db.clone(),
        vec![stripe_source()],
        vec![sql("ledger", "app.book")],
        None,
    )
    .await;
    for n in 0..5 {
        inbox
            .put(&event(&format!("evt_{n}"), "charge.succeeded", json!({})))
            .await;
    }
    let store = inbox.engine.store();
    assert_eq!(
        store
            .retire_handler("ledger", "no longer used", "test")
            .await
            .unwrap(),
        5
    );
    let (result, timeline) = inbox.until_outcome("evt_0", "ledger").await;
    assert_eq!(result, "cancelled");
    assert_eq!(timeline.outcomes[0].decided_by, "operator");
    // This node has not reloaded yet and fans out once more: a second call ends that too.
    inbox
        .put(&event("evt_late", "charge.succeeded", json!({})))
        .await;
    assert_eq!(
        store
            .retire_handler("ledger", "late", "test")
            .await
            .unwrap(),
        1
    );
    let again = store
        .retire_handler("ledger", "late", "test")
        .await
        .unwrap_err();
    assert!(matches!(again, StoreError::Refused(_)), "{again}");
    let unknown = store
        .retire_handler("nobody", "x", "test")
        .await
        .unwrap_err();
    assert!(matches!(unknown, StoreError::NotFound(_)), "{unknown}");
    assert_eq!(idle.db.count("delivery").await, 0);
    assert_eq!(idle.db.count("audit").await, 2);
    // The name is not used again.
    let error = engine(
        &idle.db,
        vec![stripe_source()],
        vec![sql("ledger", "app.book")],
    )
    .await
    .unwrap_err();
    assert!(error.contains("retired"), "{error}");
    let refused = idle
        .db
        .client()
        .await
        .execute("DELETE FROM oncehook.audit", &[])
        .await
        .unwrap_err();
    assert!(
        refused
            .as_db_error()
            .unwrap()
            .message()
            .contains("append-only")
    );
}

#[tokio::test]
async fn two_searches_for_missing_runs_at_once_make_each_run_once() {
    let idle = Inbox::start(LEDGER, vec![]).await;
    for n in 0..200 {
        idle.put(&event(&format!("evt_{n}"), "charge.succeeded", json!({})))
            .await;
    }
    let working = Inbox::on(
        idle.db.clone(),
        vec![stripe_source()],
        vec![sql("ledger", "app.book")],
        Some(dispatch()),
    )
    .await;
    let patterns = crate::support::inbox::every();
    let store = working.engine.store();
    let since = jiff::Timestamp::UNIX_EPOCH;
    let search =
        || store.replay_missing("ledger", &patterns, since, false, "handler added", "test");
    let (a, b, c) = tokio::join!(search(), search(), search());
    let made = a.unwrap().len() + b.unwrap().len() + c.unwrap().len();
    assert_eq!(made, 200);
    for n in 0..200 {
        working.until_outcome(&format!("evt_{n}"), "ledger").await;
    }
    assert_eq!(
        idle.db.one::<i64>("SELECT count(*) FROM app.ledger").await,
        200
    );
    assert_eq!(idle.db.count("delivery").await, 0);
}

/// As where the server has lost the commit of the reload: the new names are nobody's there, or
/// somebody else's.
#[tokio::test]
async fn a_connection_that_was_open_before_a_reload_is_asked_for_the_names_that_came_with_it() {
    let inbox = Inbox::start(LEDGER, vec![sql("ledger", "app.book")]).await;
    let paid = |key: &str| event(key, "charge.succeeded", json!({}));
    inbox.put(&paid("evt_1")).await;
    let late = renamed(stripe_source(), "late", None);
    let sources = vec![stripe_source(), late];
    inbox
        .engine
        .reload(sources, vec![sql("ledger", "app.book")])
        .await
        .unwrap();
    let call = |first: &str, now: &str| {
        format!(
            "UPDATE oncehook.source SET first_name = '{now}' WHERE name = 'late' AND first_name = '{first}'"
        )
    };
    inbox.db.execute(&call("late", "somebody")).await;
    let (status, _) = inbox.try_put(&paid("evt_2")).await;
    assert_eq!(status, 503);
    assert_eq!(inbox.db.count("event").await, 1);
    inbox.db.execute(&call("somebody", "late")).await;
    until("it is stored", async || {
        inbox.try_put(&paid("evt_2")).await.0 == 200
    })
    .await;
}

/// Found by the crash sweep: several nodes started at once on a busy machine, and those that waited
/// longer than a lock may be waited for ended with 55P03.
#[tokio::test]
async fn a_node_that_starts_waits_for_others_that_register() {
    let db = Arc::new(TestDb::new().await);
    let other = db.client().await;
    other
        .batch_execute("SELECT pg_advisory_lock(hashtext('oncehook.registry'))")
        .await
        .unwrap();
    let own = Arc::clone(&db);
    let starting = tokio::spawn(async move { engine(&own, vec![stripe_source()], vec![]).await });
    let mut waits = BTreeSet::new();
    until(
        "it has waited for as long as it may, and waits again",
        async || {
            let sql =
                "SELECT xact_start::text FROM pg_stat_activity WHERE datname = current_database()
                   AND wait_event_type = 'Lock'";
            waits.extend(db.all::<String>(sql).await);
            starting.is_finished() || waits.len() == 2
        },
    )
    .await;
    other
        .batch_execute("SELECT pg_advisory_unlock_all()")
        .await
        .unwrap();
    starting.await.unwrap().unwrap().shutdown().await;
}
