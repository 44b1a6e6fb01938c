//! Two inserts of one key, and errors that only ask for another try.

use sha2::{Digest, Sha256};

use crate::crash::{Sender, booked, booking, paid, put, until_booked_once};
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
