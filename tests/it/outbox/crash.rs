//! What is emitted is stored exactly if its transaction committed, whoever dies when.

use crate::crash::{POLL, QUICK, begin_handling, kill_before, paid, proxied, put, put_at_last};
use crate::support::{Action, AppBuilder, OwnCluster, PgProxy, TestApp, TestDb, until};

use super::CHAIN;

pub(super) fn chained() -> AppBuilder {
    chained_after("")
}

/// The same with further lines of `[dispatch]`.
fn chained_after(dispatch: &str) -> AppBuilder {
    let lines = |events: &str| format!("events = [{events:?}]\nlease = \"1s\"\n{QUICK}");
    TestApp::builder()
        .stripe("stripe")
        .setup(CHAIN)
        .toml(POLL)
        .toml(dispatch)
        .toml("[[source]]\nname = \"orders\"\nprovider = \"internal\"\n")
        .toml("[[source]]\nname = \"ledger\"\nprovider = \"internal\"\n")
        .sql_handler("first", "app.first", &lines("stripe:*"))
        .sql_handler("second", "app.second", &lines("orders:order.paid"))
        .sql_handler("third", "app.third", &lines("ledger:*"))
}

/// Every event of the chain was handled once, by plain inserts.
pub(super) async fn each_once(db: &TestDb, events: usize) {
    until("the whole chain is handled", async || {
        db.count("outcome").await == i64::try_from(3 * events).unwrap()
            && db.count("delivery").await + db.count("emitted").await == 0
    })
    .await;
    let lines: Vec<String> = db
        .all("SELECT handler || ': ' || count(*) || ', ' || count(DISTINCT key) FROM app.line GROUP BY handler ORDER BY handler")
        .await;
    let expected = ["first", "second", "third"].map(|h| format!("{h}: {events}, {events}"));
    assert_eq!(lines, expected);
    db.verify().await;
}

/// An event of the chain is stored and not handled yet; the node behind the proxy will handle it.
pub(super) async fn stored() -> (TestApp, PgProxy) {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let app = chained_after("enabled = false").on(db).database_url(url);
    let app = app.start().await;
    put(&app, &paid("evt_1")).await;
    (app, proxy)
}

#[tokio::test]
async fn an_emitter_that_dies_in_its_transaction_has_emitted_nothing() {
    let (mut app, proxy) = stored().await;
    proxy.arm_after("delivery_finish:", "COMMIT", Action::FreezeBefore);
    begin_handling(&mut app).await;
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    assert_eq!(app.db.count("emitted").await, 0);
    assert_eq!(app.db.count("event_key").await, 1);
    app.restart().await;
    each_once(&app.db, 1).await;
}

#[tokio::test]
async fn a_node_that_dies_at_the_relay_leaves_the_event_to_the_next_one() {
    for (needle, action) in [
        // Taken and not stored; stored and not committed; committed, and the answer lost.
        ("ingest_reserve:", Action::FreezeBefore),
        ("emitted_stored:", Action::FreezeBefore),
        ("emitted_stored:", Action::CutAfter),
    ] {
        let (mut app, proxy) = stored().await;
        match action {
            Action::CutAfter => proxy.arm_after(needle, "COMMIT", action),
            _ => proxy.arm(needle, action),
        }
        begin_handling(&mut app).await;
        proxy.until_fired(1).await;
        kill_before(&mut app, &proxy).await;
        // What the dead node had taken comes again when its lease has ended.
        app.db
            .execute("UPDATE oncehook.emitted SET lease_until = '-infinity'")
            .await;
        app.restart().await;
        each_once(&app.db, 1).await;
    }
}

#[tokio::test]
async fn a_chain_of_three_under_kills_of_nodes_and_database_happens_once() {
    const EVENTS: usize = 60;
    let cluster = OwnCluster::start().await;
    let mut app = chained().on(cluster.database().await).start().await;
    let mut second = app.another_node().await;
    for n in 0..EVENTS {
        put_at_last([&app, &second], &paid(&format!("evt_{n}"))).await;
        match n % 20 {
            6 => {
                second.kill9();
                second.restart().await;
            }
            13 => {
                app.kill9();
                app.restart().await;
            }
            19 => {
                cluster.kill().await;
                cluster.restart().await;
            }
            _ => {}
        }
    }
    each_once(&app.db, EVENTS).await;
}
