//! What counts as committed.

use crate::crash::{
    QUICK, Sender, begin_handling, booking, paid, put, storing_ledger, until_booked_once,
};
use crate::support::{OwnCluster, TestDb, until};

use super::{alter_system, expect_unavailable};

/// As a cancelled wait for a standby: the COMMIT is answered with success, and with a warning.
pub(super) const WARN_AT_COMMIT: &str = "
CREATE FUNCTION app.warn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE WARNING 'canceling wait for synchronous replication due to user request';
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER warn AFTER INSERT ON oncehook.delivery DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION app.warn();
CREATE FUNCTION app.warn_early() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE WARNING 'before the commit';
  RETURN NEW;
END $$;
CREATE TRIGGER warn_early BEFORE INSERT ON oncehook.event_key FOR EACH ROW EXECUTE FUNCTION app.warn_early()";

#[tokio::test]
async fn a_commit_answered_with_a_warning_is_not_acknowledged() {
    let app = booking().setup(WARN_AT_COMMIT).start().await;
    expect_unavailable(&app, &paid("evt_1")).await;
    app.until_logged("not durable").await;
    // It is stored here, if not everywhere; the sender's next copy is a duplicate whose own
    // commit is sound.
    assert_eq!(
        Sender::to(&app).send(&paid("evt_1")).await,
        Some((200, true))
    );
    until_booked_once(&app, &app.db, "evt_1").await;
    // A warning that comes before the COMMIT says nothing about it.
    app.db
        .execute("DROP TRIGGER warn ON oncehook.delivery")
        .await;
    assert!(!put(&app, &paid("evt_2")).await);
    until_booked_once(&app, &app.db, "evt_2").await;
}

/// Notes under which setting events are stored and booked.
const SEE: &str = "
CREATE TABLE app.seen (what text, setting text);
CREATE FUNCTION app.see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.seen VALUES (TG_TABLE_NAME, current_setting('synchronous_commit'));
  RETURN NEW;
END $$;
CREATE TRIGGER see BEFORE INSERT ON app.ledger FOR EACH ROW EXECUTE FUNCTION app.see();
CREATE TRIGGER see AFTER INSERT ON oncehook.delivery FOR EACH ROW EXECUTE FUNCTION app.see()";

/// What was seen.
async fn seen(db: &TestDb) -> Vec<String> {
    db.all("SELECT DISTINCT what || ' ' || setting FROM app.seen ORDER BY 1")
        .await
}

#[tokio::test]
async fn durability_lowered_by_database_or_role_is_raised_again() {
    let db = TestDb::new().await;
    let name = &db.name;
    db.execute_outside(&format!(
        "ALTER DATABASE {name} SET synchronous_commit = off"
    ))
    .await;
    let app = booking().setup(SEE).on(db).start().await;
    assert_eq!(app.db.one::<String>("SHOW synchronous_commit").await, "off");
    put(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(seen(&app.db).await, ["delivery on", "ledger on"]);
}

/// Notes under which setting something is leased.
const SEE_CLAIMS: &str = "
CREATE TABLE app.claims (suspect bool, setting text);
CREATE FUNCTION app.see_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.claims VALUES (NEW.suspect, current_setting('synchronous_commit'));
  RETURN NEW;
END $$;
CREATE TRIGGER see_claim AFTER UPDATE ON oncehook.delivery FOR EACH ROW
  WHEN (NEW.state = 'leased' AND OLD.state = 'ready') EXECUTE FUNCTION app.see_claim()";

/// What a call was sent under must be there when PostgreSQL comes back from a crash.
#[tokio::test]
async fn no_claim_is_forgotten_where_durability_was_lowered() {
    let db = TestDb::new().await;
    let name = &db.name;
    db.execute_outside(&format!(
        "ALTER DATABASE {name} SET synchronous_commit = off"
    ))
    .await;
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .setup(SEE_CLAIMS)
        .on(db)
        .start()
        .await;
    for key in ["evt_plain", "evt_suspect"] {
        put(&app, &paid(key)).await;
    }
    app.db
        .execute("UPDATE oncehook.delivery SET suspect = true, losses = 1 WHERE event_id = (SELECT id FROM oncehook.event WHERE key LIKE 'evt_suspect%')")
        .await;
    begin_handling(&mut app).await;
    for key in ["evt_plain", "evt_suspect"] {
        until_booked_once(&app, &app.db, key).await;
    }
    let seen: Vec<String> = app
        .db
        .all("SELECT DISTINCT suspect::text || ' ' || setting FROM app.claims ORDER BY 1")
        .await;
    assert_eq!(seen, ["false on", "true on"]);
}

#[tokio::test]
async fn durability_lowered_while_a_node_is_connected_is_raised_and_a_stronger_one_stays() {
    let cluster = OwnCluster::start().await;
    let app = booking()
        .setup(SEE)
        .on(cluster.database().await)
        .start()
        .await;
    put(&app, &paid("evt_0")).await;
    until_booked_once(&app, &app.db, "evt_0").await;
    for lower in ["off", "local"] {
        alter_system(&cluster, "synchronous_commit", lower).await;
        // Each of its sessions takes the setting over by itself.
        for n in 0..10 {
            let key = format!("evt_{lower}_{n}");
            put(&app, &paid(&key)).await;
            until_booked_once(&app, &app.db, &key).await;
        }
        assert_eq!(seen(&app.db).await, ["delivery on", "ledger on"], "{lower}");
    }
    alter_system(&cluster, "synchronous_commit", "remote_apply").await;
    let mut n = 0;
    until("the stronger one is seen", async || {
        n += 1;
        let key = format!("evt_{n}");
        put(&app, &paid(&key)).await;
        until_booked_once(&app, &app.db, &key).await;
        seen(&app.db).await
            == [
                "delivery on",
                "delivery remote_apply",
                "ledger on",
                "ledger remote_apply",
            ]
    })
    .await;
}
