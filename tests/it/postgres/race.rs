//! Two inserts of one key, errors that only ask for another try, and one that no try mends among
//! others.

use sha2::{Digest, Sha256};

use crate::crash::{
    Sender, begin_handling, booked, booking, hold_two_batches, paid, proxied, put, storing_ledger,
    until_booked_once, until_metric,
};
use crate::support::{TestApp, TestDb, backend_pid};

use super::expect_unavailable;

/// A second copy arrives while the first one's insert is held open by somebody else, who then
/// rolls back, then commits.
async fn races(app: &TestApp) {
    for (key, commits) in [("evt_back", false), ("evt_done", true)] {
        let event = paid(key);
        let digest = Sha256::digest(event.to_string()).to_vec();
        let mut other = app.db.client().await;
        let pid = backend_pid(&other).await;
        let first = other.transaction().await.unwrap();
        let insert = "INSERT INTO oncehook.event_key (source_id, key, event_id, raw_digest, digest_rule, first_seen)
            SELECT id, $1, oncehook.uuid7(now()), $2, 1, now() FROM oncehook.source WHERE name = 'stripe'";
        assert_eq!(first.execute(insert, &[&key, &digest]).await.unwrap(), 1);
        let second = Sender::to(app).spawn(event);
        app.db.until_blocked_by(pid).await;
        if commits {
            first.commit().await.unwrap();
        } else {
            first.rollback().await.unwrap();
        }
        assert_eq!(second.await.unwrap(), Some((200, commits)), "{key}");
    }
    // The one that won was stored as a whole; the other one is the first sender's business.
    until_booked_once(app, &app.db, "evt_back").await;
    assert_eq!(app.db.count("event").await, 1);
    assert_eq!(app.db.count("receipt").await, 1);
    assert_eq!(app.db.count("conflict").await, 0);
}

#[tokio::test]
async fn f67_a_copy_waits_for_the_first_one_held_open() {
    races(&booking().start().await).await;
}

#[tokio::test]
async fn f67_a_copy_waits_also_where_repeatable_read_is_the_default() {
    let db = TestDb::new().await;
    let name = &db.name;
    db.execute_outside(&format!(
        "ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'"
    ))
    .await;
    races(&booking().on(db).start().await).await;
}

/// Raises the SQLSTATE that an event's key names, the first time; under `evt_XXXXX_always` each
/// time. A sequence counts, since it survives the rollback.
const RAISE: &str = "
CREATE SEQUENCE app.tries_40001; CREATE SEQUENCE app.tries_40P01; CREATE SEQUENCE app.tries_55P03;
CREATE FUNCTION app.raise() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE code text := split_part(NEW.key, '_', 2);
BEGIN
  IF code <> 'plain' AND (NEW.key LIKE '%always' OR nextval('app.tries_' || code) = 1) THEN
    RAISE EXCEPTION 'forced' USING ERRCODE = code;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER forced BEFORE INSERT ON oncehook.event_key FOR EACH ROW EXECUTE FUNCTION app.raise()";

#[tokio::test]
async fn f74_what_a_second_try_mends_the_sender_never_hears_of() {
    let app = booking().setup(RAISE).start().await;
    for code in ["40001", "40P01", "55P03"] {
        let key = format!("evt_{code}");
        assert!(!put(&app, &paid(&key)).await, "{code}: it is new");
        until_booked_once(&app, &app.db, &key).await;
        app.until_logged(&format!("SQLSTATE {code}")).await;
    }
    assert_eq!(app.db.count("event").await, 3);
    // The budget is small: then the sender comes again, and its neighbours are not harmed.
    expect_unavailable(&app, &paid("evt_40001_always")).await;
    assert!(!put(&app, &paid("evt_plain")).await);
    assert_eq!(booked(&app.db, "evt_40001_always").await, 0);
    assert_eq!(app.db.count("event_key").await, 4);
}

/// Refuses one key as bad data and counts how often it did.
const REFUSE: &str = "
CREATE SEQUENCE app.refused;
CREATE FUNCTION app.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.key = 'evt_bad' THEN
    PERFORM nextval('app.refused');
    RAISE EXCEPTION 'no such thing' USING ERRCODE = '22P02';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON oncehook.event_key FOR EACH ROW EXECUTE FUNCTION app.refuse()";

#[tokio::test]
async fn one_request_that_postgresql_refuses_harms_nobody_in_its_batch() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", "")
        .setup(REFUSE)
        .on(db)
        .database_url(url)
        .start()
        .await;
    let held = hold_two_batches(&app, &proxy).await;
    let sender = Sender::to(&app);
    let keys: Vec<String> = (0..16)
        .map(|n| {
            if n == 9 {
                "evt_bad".to_owned()
            } else {
                format!("evt_{n}")
            }
        })
        .collect();
    let sent: Vec<_> = keys.iter().map(|key| sender.spawn(paid(key))).collect();
    until_metric(&app, "oncehook_ingest_queue_requests", |n| n >= 16.0).await;
    proxy.thaw();
    for (sent, key) in sent.into_iter().zip(&keys) {
        assert_eq!(sent.await.unwrap(), Some((200, false)), "{key}");
    }
    for held in held {
        held.await.unwrap();
    }
    // Among 16, 8, 4, 2, and alone: then it is kept as what nobody can read.
    let refused: i64 = app.db.one("SELECT last_value FROM app.refused").await;
    assert_eq!(refused, 5);
    assert_eq!(app.db.count("event WHERE state = 'unreadable'").await, 1);
    begin_handling(&mut app).await;
    for key in keys.iter().filter(|key| *key != "evt_bad") {
        until_booked_once(&app, &app.db, key).await;
    }
    assert_eq!(booked(&app.db, "evt_bad").await, 0);
}
