//! An asynchronous standby takes over: what it did not get is forgotten, and only that.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use uuid::Uuid;

use crate::crash::{
    QUICK, booked, booking, end_leases, ledger, metric, paid, put, storing_ledger,
    until_booked_once,
};
use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{Action, Gate, Node, PgProxy, Receiver, Reply, TestDb, until};

use super::{Set, fail_over};

/// How the receiver is called: the lease outlasts the test.
const CALLS: &str =
    "secrets = [{ label = \"a\", value = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\" }]
on_unknown = \"retry\"\ntimeout = \"30s\"\nlease = \"35s\"";

fn ids(letter: &str) -> Vec<String> {
    (0..4).map(|n| format!("evt_{letter}_{n}")).collect()
}

async fn put_all(node: &Node, ids: &[String]) {
    for id in ids {
        assert!(!put(node, &paid(id)).await, "{id} is new");
    }
}

async fn until_idle(db: &TestDb) {
    until("nothing is left to do", async || {
        db.count("delivery").await == 0
    })
    .await;
}

/// What the ledger says of each event: its id and its effect key. Booked twice, it fails.
async fn ledger_of(db: &TestDb) -> BTreeMap<String, (Uuid, String)> {
    let mut found = BTreeMap::new();
    for row in db
        .rows("SELECT key, event_id, effect_key FROM app.ledger", &[])
        .await
    {
        let key: String = row.get(0);
        let twice = found.insert(key.clone(), (row.get(1), row.get(2)));
        assert_eq!(twice, None, "{key} is booked twice");
    }
    found
}

/// The keys under which the receiver was called for each event, in order.
fn calls_of(receiver: &Receiver) -> BTreeMap<String, Vec<String>> {
    let mut calls: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for request in receiver.requests() {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let key = request.header("Idempotency-Key").unwrap().to_owned();
        let id = body["id"].as_str().unwrap().to_owned();
        calls.entry(id).or_default().push(key);
    }
    calls
}

/// Has a request refused, and waits for its row; returns the row's id.
async fn refused(node: &Node, db: &TestDb) -> i64 {
    let body = paid("evt_forged").to_string();
    let signature = signer::stripe("whsec_of_somebody_else", signer::now_s(), body.as_bytes());
    let headers = [("Stripe-Signature", signature.as_str())];
    assert_eq!(node.post("stripe", &headers, body).await.status(), 401);
    until("the refusal is sampled", async || {
        db.count("rejected").await == 1
    })
    .await;
    db.one("SELECT id FROM oncehook.rejected").await
}

#[tokio::test]
async fn an_asynchronous_standby_forgets_the_predicted_suffix_and_a_resend_has_the_same_effect_key()
{
    let receiver = Receiver::start().await;
    let app = ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .http_handler("calls", &receiver.url("/"), CALLS);
    let (app, proxy, replicas) = Set::asynchronous().await.start(app).await;
    let (kept, called, forgotten) = (ids("kept"), vec!["evt_called".to_owned()], ids("gone"));

    put_all(&app, &kept).await;
    until_idle(&app.db).await;
    // Claimed and called, and the standbys know of the claim; they never hear of the answer.
    let gate = Gate::closed();
    receiver.reply(Reply::status(200).behind(&gate));
    put_all(&app, &called).await;
    receiver.until_requests(kept.len() + 1).await;
    until("its booking is done", async || {
        app.db.count("delivery").await == 1
    })
    .await;
    replicas.until_caught_up().await;
    replicas.cut_links();
    gate.open();
    until_idle(&app.db).await;
    put_all(&app, &forgotten).await;
    until_idle(&app.db).await;
    let old_refusal = refused(&app, &app.db).await;
    let before = ledger_of(&app.db).await;

    // The loss is known from outside: what was acknowledged after the cut.
    replicas.primary.kill().await;
    let (_, db) = fail_over(&replicas, &proxy, &app.db).await;
    let survived: BTreeSet<String> = kept.iter().chain(&called).cloned().collect();
    let stored = db.all::<String>("SELECT key FROM oncehook.event_key").await;
    assert_eq!(stored.into_iter().collect::<BTreeSet<_>>(), survived);
    let after = ledger_of(&db).await;
    assert_eq!(after.keys().cloned().collect::<BTreeSet<_>>(), survived);
    end_leases(&db).await;
    until_idle(&db).await;

    // Providers come again with everything within their horizon.
    for id in &survived {
        assert!(put(&app, &paid(id)).await, "{id} is known");
    }
    put_all(&app, &forgotten).await;
    until_idle(&db).await;
    let after = ledger_of(&db).await;
    assert_eq!(after.len(), survived.len() + forgotten.len());
    let calls = calls_of(&receiver);
    assert_eq!(calls.len(), after.len());
    for (id, (event_id, effect_key)) in &after {
        let (old_event_id, old_effect_key) = &before[id];
        assert_eq!(effect_key, old_effect_key, "{id} is another effect now");
        assert_eq!(event_id == old_event_id, survived.contains(id), "{id}");
        // A receiver that honours the key has applied it once.
        let keys: BTreeSet<_> = calls[id].iter().collect();
        assert_eq!(keys.len(), 1, "{id} was called under {keys:?}");
        let times = if kept.contains(id) { 1 } else { 2 };
        assert_eq!(calls[id].len(), times, "{id}");
    }
    db.verify().await;
    // Numbers of a sequence are given out again, to something else: nothing but people reads them.
    assert_eq!(refused(&app, &db).await, old_refusal);
}

/// The claim of one node is forgotten, the row is claimed by another one on the new primary. A
/// token that began anew there, as a sequence does, would be the same for both.
#[tokio::test]
async fn a_lease_that_was_forgotten_does_not_fit_the_one_given_after_the_failover() {
    let Set {
        db,
        proxy: storing,
        replicas,
    } = Set::asynchronous().await;
    let proxies = [PgProxy::start(&db.url).await, PgProxy::start(&db.url).await];
    let url = storing.url(&db.name);
    let urls = proxies.each_ref().map(|proxy| proxy.url(&db.name));
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .database_url(&url)
        .on(db)
        .start()
        .await;
    let toml = app.toml().replace("enabled = false", "enabled = true");
    put(&app, &paid("evt_1")).await;
    replicas.until_caught_up().await;
    replicas.cut_links();

    // Held between its claim and the transaction that would lock the row.
    proxies[0].arm("-- delivery_lock:", Action::FreezeBefore);
    let first = app.another_node_with(&toml.replace(&url, &urls[0])).await;
    proxies[0].until_fired(1).await;
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 1);
    first.sigstop();
    replicas.primary.kill().await;
    let (promoted, db) = fail_over(&replicas, &storing, &app.db).await;
    assert_eq!(db.count("delivery WHERE state = 'ready'").await, 1);

    proxies[1].retarget(promoted.url());
    proxies[1].arm("-- delivery_lock:", Action::FreezeBefore);
    let second = app.another_node_with(&toml.replace(&url, &urls[1])).await;
    proxies[1].until_fired(1).await;
    assert_eq!(db.count("delivery WHERE state = 'leased'").await, 1);

    // The first one goes on where it was, on the new primary.
    proxies[0].retarget(promoted.url());
    proxies[0].cut();
    proxies[0].thaw();
    first.sigcont();
    until("the first one has tried to settle", async || {
        let lost = metric(&first, "oncehook_leases_lost_total").await;
        lost.unwrap_or(0.0) >= 1.0 || booked(&db, "evt_1").await > 0
    })
    .await;
    assert_eq!(booked(&db, "evt_1").await, 0, "it had no lease any more");
    assert_eq!(db.count("delivery WHERE state = 'leased'").await, 1);
    proxies[1].thaw();
    let outcome = until_booked_once(&second, &db, "evt_1").await;
    assert_eq!(outcome["attempts"], 1);
    db.verify().await;
}

/// A sequence is logged 32 numbers ahead, so a standby goes on behind them. When they are used up, it
/// goes on where its primary stood.
const NUMBERS_END: &str = "DO $$ BEGIN
  WHILE (SELECT log_cnt FROM oncehook.source_id_seq) > 0 LOOP
    PERFORM nextval('oncehook.source_id_seq');
  END LOOP;
END $$";

/// Ids of sources are numbers of a sequence, and every key is stored under one.
#[tokio::test]
async fn a_node_whose_registration_was_forgotten_stores_nothing_until_it_is_restarted() {
    let (mut app, proxy, replicas) = Set::asynchronous().await.start(booking()).await;
    put(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;
    app.db.execute(NUMBERS_END).await;
    replicas.until_caught_up().await;
    replicas.cut_links();
    let with = |name: &str| {
        format!(
            "{}\n[[source]]\nname = {name:?}\nprovider = \"stripe\"\naccept_modes = [\"live\", \"test\"]\n\
             secrets = [{{ label = \"a\", value = {STRIPE_SECRET:?} }}]\n",
            app.toml()
        )
    };
    let (late, next) = (with("late"), with("next"));
    let mut late = app.another_node_with(&late).await;
    let id = "SELECT id FROM oncehook.source WHERE name = ";
    let old_id: i32 = app.db.one(&format!("{id} 'late'")).await;
    replicas.primary.kill().await;
    let (_, db) = fail_over(&replicas, &proxy, &app.db).await;

    // Its number is free again, and goes to somebody else.
    let next = app.another_node_with(&next).await;
    assert_eq!(db.one::<i32>(&format!("{id} 'next'")).await, old_id);
    let event = paid("evt_2");
    let refused = async |when: &str| {
        for source in ["late", "stripe"] {
            let status = late.post_stripe(source, &event).await.status();
            assert_eq!(status, 503, "{source} must store nothing {when}");
        }
        assert_eq!(db.count("event").await, 1);
    };
    refused("after the failover").await;
    late.until_logged("does not know").await;
    // A reload registers it anew, while requests are under way that know the old number.
    late.sighup();
    late.until_logged("configuration reloaded").await;
    refused("after the reload").await;

    late.restart().await;
    assert_eq!(late.post_stripe("late", &event).await.status(), 200);
    let outcome = late.until_outcome("late", "evt_2", "ledger").await;
    assert_eq!(outcome["result"], "succeeded");
    assert_eq!(next.timeline("next", "evt_2").await, None);
}
