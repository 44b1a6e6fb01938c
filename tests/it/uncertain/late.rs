//! A later event of the provider that names the effect key of a call.

use serde_json::{Value, json};

use crate::crash::{
    end_leases, kill_before, ledger, paid, proxied, put, restart_after_leases, timeline,
};
use crate::support::inbox::event;
use crate::support::{
    Action, AppBuilder, Gate, Node, Reply, TestApp, backend_pid, oncehook, until, until_some,
};

use super::{Applies, Manner, Payments, SECRET, history, land, until_for_people, until_uncertain};

/// Takes the payments only, not what the provider says of them.
const PAYMENTS: &str = "events = [\"stripe:charge.succeeded\"]";

/// Handlers `settled` and `declined`, which settle the calls of `payout`.
fn settling(app: AppBuilder) -> AppBuilder {
    let handler = |name: &str, word: &str| {
        format!(
            "[[handler]]\nname = \"{name}\"\nkind = \"settle\"\nevents = [\"stripe:payment.{word}\"]\nof = \"payout\"\n\
             effect_key = \"json:/data/object/metadata/oncehook\"\nresult = \"{word}\"\nresource = \"json:/data/object/id\"\n\
             external_id = \"json:/data/object/number\"\nnot_yet = {{ for = \"200ms\", first = \"20ms\", max = \"50ms\" }}\n\
             retry = {{ for = \"1m\", first = \"10ms\", max = \"20ms\" }}\n"
        )
    };
    app.toml(&handler("settled", "succeeded"))
        .toml(&handler("declined", "failed"))
}

fn held(payments: &Payments, lines: &str) -> AppBuilder {
    settling(payments.app(&format!("on_unknown = \"hold\"\n{PAYMENTS}\n{lines}")))
}

/// What the provider says of an effect key.
fn word(id: &str, word: &str, key: &str) -> Value {
    let payment =
        json!({ "id": format!("pay_{id}"), "number": 7, "metadata": { "oncehook": key } });
    event(id, &format!("payment.{word}"), payment)
}

/// An outcome as `result decided_by`.
fn short(outcome: &Value) -> String {
    let text = |member: &str| outcome[member].as_str().unwrap().to_owned();
    format!("{} {}", text("result"), text("decided_by"))
}

/// A payout whose call was applied and whose answer was lost; and its effect key.
async fn with_a_lost_answer(payments: &Payments, lines: &str) -> (TestApp, String) {
    payments.next([Manner::Says(Reply::cut(), Applies::Yes)]);
    let app = held(payments, lines).start().await;
    put(&app, &paid("evt_1")).await;
    until_for_people(&app, "evt_1").await;
    let key = payments.calls().remove(0);
    (app, key)
}

#[tokio::test]
async fn an_event_that_names_the_effect_key_ends_the_uncertain_delivery() {
    for (said, by) in [("succeeded", "settled"), ("failed", "declined")] {
        let payments = Payments::start().await;
        let (app, key) = with_a_lost_answer(&payments, "").await;
        put(&app, &word("evt_9", said, &key)).await;
        let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
        assert_eq!(short(&outcome), format!("{said} webhook"));
        assert_eq!(
            outcome["reason"],
            format!("event evt_9 of stripe says {said}")
        );
        let made = [
            &outcome["resource"],
            &outcome["external_id"],
            &outcome["attempts"],
        ];
        assert_eq!(made, [&json!("pay_evt_9"), &json!("7"), &json!(1)]);
        let story = timeline(&app, "evt_1").await;
        let evidence = story["attempts"].as_array().unwrap().last().unwrap();
        assert_eq!(
            evidence["told_by"],
            json!({ "source": "stripe", "key": "evt_9" })
        );
        let own = app.until_outcome("stripe", "evt_9", by).await;
        assert_eq!(own["result"], "succeeded");
        assert_eq!(own["resource"], "stripe evt_1, handler payout, run 1");

        // Once more, by another event and by a replay: there is nothing new in it.
        let again = json!({ "id": "pay_evt_9", "metadata": { "oncehook": key } });
        put(&app, &event("evt_10", &format!("payment.{said}"), again)).await;
        let args = [
            "replay",
            "stripe",
            "evt_9",
            "--handler",
            by,
            "--force",
            "--reason",
            "x",
        ];
        let ran = oncehook(&app.config(), &args, &[]).await;
        assert_eq!(ran.code, Some(0), "{}", ran.said());
        let other = app.until_outcome("stripe", "evt_10", by).await;
        let run_2 = until_some("the replay has ended", async || {
            let outcomes = timeline(&app, "evt_9").await["outcomes"].take();
            outcomes.as_array()?.iter().find(|o| o["run"] == 2).cloned()
        })
        .await;
        for known in [other, run_2] {
            assert_eq!(known["result"], "skipped");
            let reason = known["reason"].as_str().unwrap();
            assert!(
                reason.starts_with("known already: stripe evt_1"),
                "{reason}"
            );
        }
        assert_eq!(app.db.count("attempt WHERE verdict = 'evidence'").await, 1);
        assert_eq!((payments.calls().len(), payments.probes().len()), (1, 0));
        app.db.verify().await;
    }
}

/// A call that is out, and what an event says of it before its own answer comes.
async fn told_while_out(payments: &Payments, gate: &Gate) -> TestApp {
    payments.next([Manner::Holds(gate.clone(), Applies::Yes)]);
    let app = held(payments, "timeout = \"30s\"\nlease = \"1m\"")
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    payments.until_calls(1).await;
    assert_eq!(
        app.db.count("effect").await,
        1,
        "its key is kept before it leaves"
    );
    put(&app, &word("evt_9", "succeeded", &payments.calls()[0])).await;
    until("it is kept", async || {
        app.db.count("attempt WHERE told_by IS NOT NULL").await == 1
    })
    .await;
    let open = timeline(&app, "evt_1").await["deliveries"][0].take();
    assert_eq!(
        open["state"], "leased",
        "a call that is under way answers for itself"
    );
    app
}

#[tokio::test]
async fn an_event_that_comes_before_the_calls_own_answer_is_kept_and_decides_nothing() {
    let (payments, gate) = (Payments::start().await, Gate::closed());
    let app = told_while_out(&payments, &gate).await;
    gate.open();
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(short(&outcome), "succeeded handler");
    let own = app.until_outcome("stripe", "evt_9", "settled").await;
    let (result, attempts) = (own["result"].as_str(), own["attempts"].as_i64().unwrap());
    // Its time to wait may be spent before the call ends.
    assert!(
        matches!(result, Some("skipped" | "succeeded")) && attempts > 1,
        "{own}"
    );
    app.db.verify().await;
}

#[tokio::test]
async fn killed_with_a_call_out_of_which_an_event_has_told_it_is_ended_by_that() {
    let (payments, gate) = (Payments::start().await, Gate::closed());
    let mut app = told_while_out(&payments, &gate).await;
    app.kill9();
    restart_after_leases(&mut app).await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(short(&outcome), "succeeded webhook");
    assert_eq!((payments.calls().len(), payments.applied()), (1, vec![1]));
    end_leases(&app.db).await;
    app.until_outcome("stripe", "evt_9", "settled").await;
    app.db.verify().await;
}

#[tokio::test]
async fn no_call_leaves_whose_effect_key_is_not_kept() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let payments = Payments::start().await;
    let mut app = held(&payments, "").on(db).database_url(url).start().await;
    proxy.arm("-- effect_keep:", Action::FreezeBefore);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    assert!(payments.calls().is_empty());
    restart_after_leases(&mut app).await;
    until_for_people(&app, "evt_1").await;
    assert_eq!(
        (payments.calls().len(), app.db.count("effect").await),
        (0, 0)
    );
    app.db.verify().await;
}

#[tokio::test]
async fn what_contradicts_an_outcome_is_kept_and_said_and_changes_nothing() {
    let payments = Payments::start().await;
    let (app, key) = with_a_lost_answer(&payments, "").await;
    let body = json!({ "handler": "payout", "as": "dead", "reason": "by telephone" });
    assert_eq!(app.resolve("stripe", "evt_1", &body).await.0, 200);
    put(&app, &word("evt_9", "succeeded", &key)).await;
    let own = app.until_outcome("stripe", "evt_9", "settled").await;
    assert_eq!(own["result"], "failed");
    let reason = own["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("it says succeeded, and the outcome is another: stripe evt_1"),
        "{reason}"
    );
    app.until_logged("an event contradicts the outcome of a call")
        .await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(short(&outcome), "dead operator");
    land(&app.db).await;
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
        ran.code == Some(1) && ran.stderr.contains("the effect is there"),
        "{}",
        ran.said()
    );
    // The other word is what is known.
    put(&app, &word("evt_10", "failed", &key)).await;
    let same = app.until_outcome("stripe", "evt_10", "declined").await;
    assert_eq!(same["result"], "skipped");
    assert_eq!(
        (payments.calls().len(), app.db.count("delivery").await),
        (1, 0)
    );
    app.db.verify().await;
}

#[tokio::test]
async fn a_second_payment_under_one_effect_key_is_said() {
    let payments = Payments::start().await;
    let (app, key) = with_a_lost_answer(&payments, "").await;
    for id in ["evt_8", "evt_9"] {
        put(&app, &word(id, "succeeded", &key)).await;
        app.until_outcome("stripe", id, "settled").await;
        app.until_outcome("stripe", "evt_1", "payout").await;
    }
    let second = app.until_outcome("stripe", "evt_9", "settled").await;
    assert_eq!(second["result"], "failed", "{second}");
    assert_eq!(
        app.db.count("outcome WHERE resource = 'pay_evt_8'").await,
        1
    );
    app.db.verify().await;
}

#[tokio::test]
async fn a_no_is_not_believed_where_it_can_be_that_of_an_earlier_call() {
    let payments = Payments::start().await;
    payments.next([
        Manner::Says(Reply::status(429), Applies::No),
        Manner::Says(Reply::cut(), Applies::Yes),
    ]);
    let app = held(&payments, "").start().await;
    put(&app, &paid("evt_1")).await;
    until_for_people(&app, "evt_1").await;
    let key = payments.calls().remove(0);
    put(&app, &word("evt_9", "failed", &key)).await;
    let own = app.until_outcome("stripe", "evt_9", "declined").await;
    assert!(
        own["reason"]
            .as_str()
            .unwrap()
            .starts_with("kept for whoever decides"),
        "{own}"
    );
    until_for_people(&app, "evt_1").await;
    put(&app, &word("evt_10", "succeeded", &key)).await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(short(&outcome), "succeeded webhook");
    app.db.verify().await;
}

async fn switch(node: &Node, action: &str) {
    let url = format!("http://{}/v1/handlers/payout/{action}", node.api);
    let request = node
        .http
        .post(url)
        .header("content-type", "application/json");
    assert_eq!(request.body("{}").send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn what_waits_to_be_sent_again_is_not_sent_when_an_event_has_told_that_it_is_there() {
    let payments = Payments::start().await;
    let (app, key) = with_a_lost_answer(&payments, "").await;
    switch(&app, "pause").await;
    land(&app.db).await;
    let body = json!({ "handler": "payout", "as": "retry", "reason": "they have nothing" });
    assert_eq!(app.resolve("stripe", "evt_1", &body).await.0, 200);
    put(&app, &word("evt_9", "succeeded", &key)).await;
    app.until_outcome("stripe", "evt_9", "settled").await;
    switch(&app, "resume").await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        short(&outcome),
        "succeeded webhook",
        "{:?}",
        history(&app, "evt_1").await
    );
    assert_eq!((payments.calls().len(), payments.applied()), (1, vec![1]));
    app.db.verify().await;
}

#[tokio::test]
async fn what_names_no_call_that_is_known_is_skipped_with_the_reason() {
    let payments = Payments::start().await;
    let app = held(&payments, "").start().await;
    let unknown = format!("ohk_{}", "0".repeat(40));
    for (id, key, reason) in [
        (
            "evt_7",
            json!(unknown),
            "the effect key that it names is not known here",
        ),
        (
            "evt_8",
            json!("order 7"),
            "what the event names is no effect key of oncehook",
        ),
        ("evt_9", json!(null), "the event names no effect key"),
    ] {
        let payment = json!({ "id": "p", "metadata": { "oncehook": key } });
        put(&app, &event(id, "payment.succeeded", payment)).await;
        let own = app.until_outcome("stripe", id, "settled").await;
        assert_eq!(
            (&own["result"], &own["reason"]),
            (&json!("skipped"), &json!(reason))
        );
        let looked = own["attempts"].as_i64().unwrap();
        assert_eq!(
            looked > 1,
            id == "evt_7",
            "only what may come yet is looked for again: {own}"
        );
    }
    app.db.verify().await;
}

#[tokio::test]
async fn a_contradiction_waits_for_a_replay_that_is_being_opened() {
    let payments = Payments::start().await;
    let (app, key) = with_a_lost_answer(&payments, "").await;
    let body = json!({ "handler": "payout", "as": "dead", "reason": "by telephone" });
    assert_eq!(app.resolve("stripe", "evt_1", &body).await.0, 200);
    let replay = app.db.client().await;
    let pid = backend_pid(&replay).await;
    replay
        .batch_execute(
            "BEGIN; INSERT INTO oncehook.delivery (event_id, handler_id, run, run_at)
             SELECT event_id, handler_id, 2, now() + interval '1 day' FROM oncehook.outcome",
        )
        .await
        .unwrap();
    put(&app, &word("evt_9", "succeeded", &key)).await;
    app.db.until_blocked_by(pid).await;
    replay.batch_execute("COMMIT").await.unwrap();
    let own = app.until_outcome("stripe", "evt_9", "settled").await;
    assert_eq!(
        own["resource"], "stripe evt_1, handler payout, run 2",
        "{own}"
    );
    app.db
        .execute("UPDATE oncehook.delivery SET run_at = now()")
        .await;
    until("the second run ends", async || {
        app.db
            .count("outcome WHERE run = 2 AND decided_by = 'webhook'")
            .await
            == 1
    })
    .await;
    assert_eq!(payments.calls().len(), 1, "nothing is sent again");
}

/// An event, a probe and a person at once: one outcome each, whoever comes first.
#[tokio::test]
async fn of_an_event_a_probe_and_a_person_one_decides() {
    const COUNT: usize = 12;
    let payments = Payments::start().await;
    payments.next((0..COUNT).map(|_| Manner::Says(Reply::cut(), Applies::Yes)));
    let lines = payments.probe_lines("\"1h\"", PAYMENTS);
    let mut app = settling(payments.called_by("payout", &lines, ledger()))
        .start()
        .await;
    let second = app.another_node().await;
    for n in 0..COUNT {
        put(&app, &paid(&format!("evt_{n}"))).await;
    }
    let mut keys = Vec::new();
    for n in 0..COUNT {
        let open = until_uncertain(&app, &format!("evt_{n}")).await;
        keys.push(open["effect_key"].as_str().unwrap().to_owned());
    }
    app.db
        .execute("UPDATE oncehook.delivery SET run_at = now() WHERE state = 'uncertain'")
        .await;
    let mut refused = 0;
    for (n, key) in keys.iter().enumerate() {
        let (name, told) = (
            format!("evt_{n}"),
            word(&format!("told_{n}"), "succeeded", key),
        );
        let body = json!({ "handler": "payout", "as": "dead", "reason": "x" });
        let (status, _) = tokio::join!(second.resolve("stripe", &name, &body), put(&app, &told));
        refused += usize::from(status.0 != 200);
    }
    for n in 0..COUNT {
        app.until_outcome("stripe", &format!("evt_{n}"), "payout")
            .await;
        app.until_outcome("stripe", &format!("told_{n}"), "settled")
            .await;
    }
    let decided: Vec<String> = app
        .db
        .all("SELECT result || ' ' || decided_by FROM oncehook.outcome o JOIN oncehook.handler h ON h.id = o.handler_id WHERE h.name = 'payout'")
        .await;
    assert_eq!(decided.len(), COUNT);
    let by_person = decided.iter().filter(|d| *d == "dead operator").count();
    assert_eq!(by_person + refused, COUNT, "{decided:?}");
    let others = ["succeeded webhook", "succeeded probe", "dead operator"];
    assert!(
        decided.iter().all(|d| others.contains(&d.as_str())),
        "{decided:?}"
    );
    // Each that a person called dead is contradicted by its event.
    assert_eq!(
        app.db.count("outcome WHERE result = 'failed'").await,
        i64::try_from(by_person).unwrap()
    );
    assert_eq!(payments.calls().len(), COUNT);
    app.db.verify().await;
}

#[tokio::test]
async fn the_next_of_its_lane_follows_what_an_event_has_settled() {
    let payments = Payments::start().await;
    let (app, key) = with_a_lost_answer(&payments, "lane = \"entity\"").await;
    put(&app, &paid("evt_2")).await;
    until("it waits", async || {
        app.db.count("delivery WHERE state = 'blocked'").await == 1
    })
    .await;
    put(&app, &word("evt_9", "succeeded", &key)).await;
    app.until_outcome("stripe", "evt_2", "payout").await;
    assert_eq!(payments.applied(), [1, 1]);
    app.db.verify().await;
}

/// Each generation has an effect key of its own, so the word about one says nothing of the other.
#[tokio::test]
async fn an_event_is_about_the_generation_whose_effect_key_it_names() {
    let payments = Payments::start().await;
    let (app, first) = with_a_lost_answer(&payments, "").await;
    put(&app, &word("evt_8", "succeeded", &first)).await;
    app.until_outcome("stripe", "evt_1", "payout").await;
    payments.next([Manner::Says(Reply::cut(), Applies::Yes)]);
    land(&app.db).await;
    let args = [
        "replay",
        "stripe",
        "evt_1",
        "--handler",
        "payout",
        "--force",
        "--reason",
        "x",
    ];
    let ran = oncehook(&app.config(), &args, &[]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    payments.until_calls(2).await;
    until_for_people(&app, "evt_1").await;
    let second = payments.calls().remove(1);
    assert_ne!(first, second);
    put(&app, &word("evt_9", "failed", &first)).await;
    let own = app.until_outcome("stripe", "evt_9", "declined").await;
    assert_eq!(own["result"], "failed", "it contradicts run 1: {own}");
    until_for_people(&app, "evt_1").await;
    put(&app, &word("evt_10", "succeeded", &second)).await;
    let own = app.until_outcome("stripe", "evt_10", "settled").await;
    assert_eq!(
        own["resource"], "stripe evt_1, handler payout, run 2",
        "{own}"
    );
    until("the second run ends", async || {
        app.db
            .count("outcome WHERE run = 2 AND result = 'succeeded' AND decided_by = 'webhook'")
            .await
            == 1
    })
    .await;
    assert_eq!(app.db.count("effect").await, 2);
    app.db.verify().await;
}

/// The client of an operation is answered, though the call's own answer never came.
#[tokio::test]
async fn an_event_that_settles_the_call_of_an_operation_answers_its_client() {
    for (said, status) in [("succeeded", 200), ("failed", 422)] {
        let payments = Payments::start().await;
        payments.next([Manner::Says(Reply::cut(), Applies::Yes)]);
        let operation = format!(
            "[[operation]]\nname = \"payout\"\nkind = \"http\"\nurl = {:?}\non_unknown = \"hold\"\n\
             secrets = [{{ label = \"a\", value = {SECRET:?} }}]\nwait = \"0s\"\n",
            payments.receiver.url("/pay")
        );
        let app = settling(TestApp::builder().toml(&operation)).start().await;
        let submit = async || {
            let url = format!("http://{}/v1/operations/payout", app.api);
            let request = app
                .http
                .post(url)
                .header("content-type", "application/json");
            let request = request.header("idempotency-key", "order-1");
            let answer = request.body("{\"amount\":1}").send().await.unwrap();
            let status = answer.status().as_u16();
            (status, answer.json::<Value>().await.unwrap())
        };
        assert_eq!(submit().await.0, 202);
        until("its result is not known", async || {
            submit().await.1["state"] == "uncertain"
        })
        .await;
        let key = payments.calls().remove(0);
        put(&app, &word("evt_9", said, &key)).await;
        let answer = until_some("it is answered", async || {
            let answer = submit().await;
            (answer.0 != 202).then_some(answer)
        })
        .await;
        assert_eq!(answer.0, status, "{answer:?}");
        let decided = [&answer.1["result"], &answer.1["decided_by"]];
        assert_eq!(decided, [&json!(said), &json!("webhook")]);
        let made = [&answer.1["resource"], &answer.1["external_id"]];
        assert_eq!(made, [&json!("pay_evt_9"), &json!("7")]);
        assert_eq!(submit().await, answer, "and the same each time");
        assert_eq!(app.db.count("response").await, 1);
        assert_eq!(payments.calls().len(), 1);
        app.db.verify().await;
    }
}
