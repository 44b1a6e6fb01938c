//! An event that takes down whoever runs it ends alone.

use crate::support::{TestApp, until, until_some};

use super::{
    QUICK, begin_handling, booked, end_leases, paid, put, storing_ledger, until_booked_once,
    until_disconnected, verdicts,
};

/// The event that a node does not survive: its handler makes itself known and then hangs on, and
/// the test kills the node in that moment, every time.
const POISONOUS: &str = "
CREATE FUNCTION app.poisonous(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.book(event);
  IF event.key = 'evt_poison' THEN
    PERFORM pg_advisory_xact_lock(7002);
    PERFORM pg_sleep(60);
  END IF;
END $$";

/// Kills the node whenever it runs the poison event, until that has its outcome.
async fn kill_while_poison_runs(app: &mut TestApp) -> usize {
    let mut kills = 0;
    loop {
        let pid = until_some("the poison event runs or is finished", async || {
            let running =
                "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 7002 AND granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
            if let Some(pid) = app.db.all::<i32>(running).await.first() {
                return Some(Some(*pid));
            }
            let finished = "outcome WHERE result <> 'succeeded'";
            (app.db.count(finished).await > 0).then_some(None)
        })
        .await;
        let Some(pid) = pid else { return kills };
        app.kill9();
        kills += 1;
        // In place of the two seconds after which PostgreSQL looks for the client, and of the
        // lease's time.
        app.db
            .execute(&format!("SELECT pg_terminate_backend({pid})"))
            .await;
        until_disconnected(&app.db).await;
        end_leases(&app.db).await;
        app.restart().await;
    }
}

#[tokio::test]
async fn f48_a_poison_event_among_49_good_ones_dies_alone_after_three_losses() {
    let lines = format!("{QUICK}\ntimeout = \"1m\"");
    let mut app = storing_ledger()
        .setup(POISONOUS)
        .sql_handler("ledger", "app.poisonous", &lines)
        .start()
        .await;
    // Stored while nobody works, so that one claim takes them all.
    for n in 0..49 {
        put(&app, &paid(&format!("evt_{n}"))).await;
        if n == 24 {
            put(&app, &paid("evt_poison")).await;
        }
    }
    begin_handling(&mut app).await;
    let kills = kill_while_poison_runs(&mut app).await;
    assert_eq!(kills, 4, "once among others, three times alone");
    let outcome = app.until_outcome("stripe", "evt_poison", "ledger").await;
    assert_eq!(outcome["result"], "dead");
    assert!(
        outcome["reason"].as_str().unwrap().contains("poison"),
        "{outcome}"
    );
    assert_eq!(verdicts(&app, "evt_poison").await, ["lost"; 4]);
    assert_eq!(booked(&app.db, "evt_poison").await, 0);
    for n in 0..49 {
        until_booked_once(&app, &app.db, &format!("evt_{n}")).await;
    }
    assert_eq!(app.db.count("outcome WHERE result = 'dead'").await, 1);
    app.db.verify().await;
}

/// The handler ends its own backend: the node lives, its connection does not.
const FATAL: &str = "
CREATE FUNCTION app.fatal(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.book(event);
  IF event.key = 'evt_poison' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
END $$";

#[tokio::test]
async fn f48_an_event_that_ends_its_backend_is_dead_and_its_neighbours_are_done() {
    let mut app = storing_ledger()
        .setup(FATAL)
        .sql_handler("ledger", "app.fatal", "lease = \"1h\"")
        .start()
        .await;
    for n in 0..20 {
        put(&app, &paid(&format!("evt_{n}"))).await;
        if n == 9 {
            put(&app, &paid("evt_poison")).await;
        }
    }
    begin_handling(&mut app).await;
    // Nobody waits for a lease of an hour: the node gives its own back.
    let outcome = app.until_outcome("stripe", "evt_poison", "ledger").await;
    assert_eq!(outcome["result"], "dead");
    assert!(
        outcome["reason"].as_str().unwrap().contains("poison"),
        "{outcome}"
    );
    assert_eq!(verdicts(&app, "evt_poison").await, ["lost"; 4]);
    for n in 0..20 {
        until_booked_once(&app, &app.db, &format!("evt_{n}")).await;
    }
    assert_eq!(booked(&app.db, "evt_poison").await, 0);
    app.db.verify().await;
}

#[tokio::test]
async fn f48_suspects_and_others_take_turns() {
    let mut app = storing_ledger()
        .setup(
            "CREATE FUNCTION app.slowly(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM app.book(event);
               PERFORM pg_sleep(0.03);
             END $$",
        )
        .sql_handler("ledger", "app.slowly", &format!("{QUICK}\nbatch = 1"))
        .start()
        .await;
    // As a crash under load leaves them behind.
    for n in 0..12 {
        put(&app, &paid(&format!("evt_suspect_{n}"))).await;
    }
    app.db
        .execute("UPDATE oncehook.delivery SET suspect = true, losses = 1")
        .await;
    for n in 0..12 {
        put(&app, &paid(&format!("evt_good_{n}"))).await;
    }
    begin_handling(&mut app).await;
    until("all are done", async || app.db.count("outcome").await == 24).await;
    let order = "SELECT split_part(key, '_', 2) FROM app.ledger ORDER BY xmin::text::bigint";
    let order: Vec<String> = app.db.all(order).await;
    let among_first = |kind: &str| order.iter().take(8).filter(|k| *k == kind).count();
    assert!(among_first("good") >= 2, "{order:?}");
    assert!(among_first("suspect") >= 2, "{order:?}");
}
