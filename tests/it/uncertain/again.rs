//! A replay of what a person has ended: not while its call may be under way.

use serde_json::{Value, json};

use crate::crash::{end_leases, paid, put, restart_after_leases, timeline};
use crate::support::{Gate, Node, Ran, Reply, TestApp, oncehook, until, until_some};

use super::{Applies, Manner, Payments, history, land, says, until_for_people, until_uncertain};

async fn resolve(node: &Node, key: &str, word: &str) -> Value {
    let body = json!({ "handler": "payout", "as": word, "reason": "their books" });
    let (status, resolved) = node.resolve("stripe", key, &body).await;
    assert_eq!(status, 200, "{resolved}");
    resolved
}

async fn replay(app: &TestApp, args: &[&str]) -> Ran {
    let mut line = vec!["replay"];
    line.extend(args);
    line.extend(["--handler", "payout", "--reason", "once more"]);
    oncehook(&app.config(), &line, &[]).await
}

async fn replay_all(app: &TestApp) -> Ran {
    let fits = ["--result", "dead,failed", "--since", "1h", "--yes"];
    replay(app, &[&["--all"], &fits[..]].concat()).await
}

/// Waits for the outcome of the second run.
async fn until_second_run(node: &Node) -> Value {
    until_some("the second run has ended", async || {
        let runs = timeline(node, "evt_1").await["outcomes"].take();
        let mut runs = runs.as_array()?.clone().into_iter();
        runs.find(|outcome| outcome["run"] == 2)
    })
    .await
}

/// A payout whose node was killed with its call out; its result is for people to say.
async fn killed_with_a_call_out(payments: &Payments) -> (TestApp, Value) {
    payments.next([Manner::Holds(Gate::closed(), Applies::Yes)]);
    let mut app = payments.app("on_unknown = \"hold\"").start().await;
    put(&app, &paid("evt_1")).await;
    payments.until_calls(1).await;
    app.kill9();
    restart_after_leases(&mut app).await;
    let open = until_for_people(&app, "evt_1").await;
    (app, open)
}

/// A payout that a person gave up at a second node while its call is out; the first node stands still, and the
/// receiver answers it when the gate opens.
struct GivenUp {
    app: TestApp,
    second: Node,
    answer: Gate,
}

impl GivenUp {
    /// The receiver applies it or not, and says so.
    async fn before_its_answer(payments: &Payments, reply: Reply, applies: Applies) -> Self {
        let answer = Gate::closed();
        payments.next([Manner::Says(reply.behind(&answer), applies)]);
        let lines = "on_unknown = \"hold\"\ntimeout = \"30s\"\nlease = \"35s\"";
        let mut app = payments.app(lines).start().await;
        put(&app, &paid("evt_1")).await;
        payments.until_calls(1).await;
        app.sigstop();
        let second = app.another_node().await;
        end_leases(&app.db).await;
        until_for_people(&second, "evt_1").await;
        resolve(&second, "evt_1", "dead").await;
        Self {
            app,
            second,
            answer,
        }
    }

    /// The answer comes, and the node that made the call goes on and keeps it.
    async fn answered(&self) {
        self.answer.open();
        self.app.sigcont();
        until("its answer is kept", async || {
            let history = history(&self.second, "evt_1").await;
            history.iter().any(|line| line.starts_with("evidence"))
        })
        .await;
    }
}

/// What `show` says beside the timeline.
async fn remarks(app: &TestApp) -> String {
    let ran = oncehook(&app.config(), &["show", "stripe", "evt_1"], &[]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    ran.stderr
}

const OFFER: &str = "replay --handler payout";

#[tokio::test]
async fn what_a_person_gave_up_is_not_replayed_while_its_call_may_be_under_way() {
    for word in ["dead", "failed"] {
        let payments = Payments::start().await;
        let (app, open) = killed_with_a_call_out(&payments).await;
        resolve(&app, "evt_1", word).await;
        let until_when = open["in_flight_until"].as_str().unwrap();
        let ran = replay(&app, &["stripe", "evt_1"]).await;
        assert_eq!(ran.code, Some(1), "{word}: {}", ran.said());
        let says = format!("its call may still be under way until {until_when}");
        assert!(ran.stderr.contains(&says), "{says}: {}", ran.said());
        let url = format!("http://{}/v1/events/stripe/evt_1/replay", app.api);
        let order = json!({ "handler": "payout", "reason": "x" });
        let asked = app
            .http
            .post(url)
            .header("content-type", "application/json");
        let answer = asked.body(order.to_string()).send().await.unwrap();
        assert_eq!(answer.status(), 409);
        let problem: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert_eq!(problem["type"], "urn:oncehook:problem:call-under-way");
        let remarks_now = remarks(&app).await;
        assert!(!remarks_now.contains(OFFER), "{word}: {remarks_now}");
        assert_eq!(remarks_now.contains(&says), word == "dead", "{remarks_now}");
        // A bulk says it of each, counts it, and goes on.
        let ran = replay_all(&app).await;
        let counted = ran.stderr.contains("0 runs are ready, 1 refused");
        assert!(counted && ran.stdout.contains(&says), "{}", ran.said());
        assert_eq!(app.db.count("delivery").await, 0, "nothing was opened");
        assert_eq!(payments.calls().len(), 1);
        land(&app.db).await;
        let remarks_then = remarks(&app).await;
        assert_eq!(
            remarks_then.contains(OFFER),
            word == "dead",
            "{remarks_then}"
        );
        let ran = if word == "dead" {
            replay(&app, &["stripe", "evt_1"]).await
        } else {
            replay_all(&app).await
        };
        assert_eq!(ran.code, Some(0), "{}", ran.said());
        let outcome = until_second_run(&app).await;
        assert_eq!(outcome["result"], "succeeded");
        assert_eq!(payments.calls().len(), 2);
        app.db.verify().await;
    }
}

/// By force there is another effect key, and still there would be two calls at once.
#[tokio::test]
async fn by_force_neither() {
    let payments = Payments::start().await;
    let (app, _) = killed_with_a_call_out(&payments).await;
    resolve(&app, "evt_1", "succeeded").await;
    let ran = replay(&app, &["stripe", "evt_1", "--force"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.said());
    assert!(ran.stderr.contains("under way until"), "{}", ran.said());
    land(&app.db).await;
    let ran = replay(&app, &["stripe", "evt_1", "--force"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    until_second_run(&app).await;
    app.db.verify().await;
}

#[tokio::test]
async fn a_call_whose_own_answer_has_come_is_over() {
    let payments = Payments::start().await;
    let given_up = GivenUp::before_its_answer(&payments, Reply::status(422), Applies::No).await;
    let app = &given_up.app;
    let ran = replay(app, &["stripe", "evt_1"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.said());
    given_up.answered().await;
    let ran = replay(app, &["stripe", "evt_1"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    until_second_run(&given_up.second).await;
    assert_eq!((payments.calls().len(), payments.applied()), (2, vec![1]));
    app.db.verify().await;
}

/// What a person gave up, and turns out to be done, is not done again: neither by a replay nor in a bulk.
#[tokio::test]
async fn what_a_late_answer_says_is_done_is_not_sent_again() {
    let payments = Payments::start().await;
    let given_up = GivenUp::before_its_answer(&payments, Reply::status(200), Applies::Yes).await;
    let app = &given_up.app;
    land(&app.db).await;
    given_up.answered().await;
    let ran = replay(app, &["stripe", "evt_1"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.said());
    let says = "its call was answered late, succeeded";
    assert!(ran.stderr.contains(says), "{}", ran.said());
    let remarks = remarks(app).await;
    assert!(
        remarks.contains(says) && !remarks.contains(OFFER),
        "{remarks}"
    );
    let refused = timeline(&given_up.second, "evt_1").await["dead_letters"][0]["refused"].take();
    assert!(refused.as_str().unwrap().contains(says), "{refused}");
    let ran = replay_all(app).await;
    let counted = ran.stderr.contains("0 runs are ready, 1 refused");
    assert!(counted && ran.stdout.contains(says), "{}", ran.said());
    assert_eq!(payments.applied(), vec![1]);
    let ran = replay(app, &["stripe", "evt_1", "--force"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    until_second_run(&given_up.second).await;
    app.db.verify().await;
}

#[tokio::test]
async fn a_call_that_a_probe_has_found_is_over() {
    let payments = Payments::start().await;
    payments.next([Manner::Says(Reply::cut(), Applies::No)]);
    payments.next_probes([says(
        r#"{"state":"applied","result":"failed","reason":"no such account"}"#,
    )]);
    let app = payments.probed("\"100ms\"", "").start().await;
    put(&app, &paid("evt_1")).await;
    until_uncertain(&app, "evt_1").await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(outcome["decided_by"], "probe");
    assert_eq!(
        app.db.count("attempt WHERE in_flight_until > now()").await,
        1
    );
    let ran = replay(&app, &["stripe", "evt_1"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    until_second_run(&app).await;
    app.db.verify().await;
}

/// A held delivery has no call in question any more; a first one may have been done all the same.
#[tokio::test]
async fn what_a_late_answer_says_is_done_is_not_sent_again_from_where_it_is_held() {
    let payments = Payments::start().await;
    payments.next([Manner::Says(Reply::status(422), Applies::No)]);
    let lines = "on_unknown = \"hold\"\nlane = \"entity\"\nlane_on_dead = \"hold\"";
    let app = payments.app(lines).start().await;
    put(&app, &paid("evt_1")).await;
    until("it is held", async || {
        timeline(&app, "evt_1").await["state"] == "held"
    })
    .await;
    // As the node writes it that finds its lease lost.
    app.db
        .execute(
            "INSERT INTO oncehook.attempt (event_id, handler_id, run, lease_token, ended_at, verdict, error, answer, resource)
             SELECT event_id, handler_id, run, gen_random_uuid(), now(), 'evidence', 'done', 'succeeded', 'pay_7' FROM oncehook.delivery",
        )
        .await;
    let ran = replay(&app, &["stripe", "evt_1"]).await;
    let says = "its call was answered late, succeeded";
    assert!(
        ran.code == Some(1) && ran.stderr.contains(says),
        "{}",
        ran.said()
    );
    for word in ["retry", "failed", "dead"] {
        let body = json!({ "handler": "payout", "as": word, "reason": "x" });
        let (status, refused) = app.resolve("stripe", "evt_1", &body).await;
        assert_eq!(status, 409, "{word}: {refused}");
    }
    assert_eq!(payments.calls().len(), 1);
    resolve(&app, "evt_1", "succeeded").await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["resource"]),
        (&json!("succeeded"), &json!("pay_7"))
    );
}
