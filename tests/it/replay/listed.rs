//! Bulk replays looked at, stopped and continued from the command line.

use serde_json::{Value, json};

use crate::support::{Ran, TestApp, oncehook, until};

use super::api::{post, started};
use super::{dead_letters, open, runs, standing, until_booked, until_standing};

async fn bulk(app: &TestApp, args: &[&str]) -> Ran {
    oncehook(&app.config(), &[&["replay"], args].concat(), &[]).await
}

async fn read(app: &TestApp, args: &[&str]) -> Value {
    let ran = bulk(app, &[args, &["--json"]].concat()).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    serde_json::from_str(&ran.stdout).unwrap()
}

fn words<'v>(values: &'v Value, member: &str) -> Vec<&'v str> {
    let values = values.as_array().unwrap();
    values.iter().map(|v| v[member].as_str().unwrap()).collect()
}

#[tokio::test]
async fn whoever_has_a_terminal_finds_it_stops_it_and_continues_it_by_number() {
    let mut app = dead_letters(6).await;
    open(&app).await;
    let none = bulk(&app, &["--list"]).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), ""));
    assert!(none.stderr.contains("there was no bulk replay"), "{none:?}");

    let order = json!({
        "dry_run": false, "reason": "the account is open again", "since": "2020-01-01T00:00:00Z", "handler": "ledger",
        "source": "stripe", "type": "charge.*", "rate": 1,
    });
    let first = started(&app, &order).await;
    until("it is at work", async || standing(&app, first).await.1 > 0).await;
    let list = bulk(&app, &["--list"]).await;
    for part in [
        "1  running  ",
        " ready  0 refused  1/s  ",
        "  api:local  dead, handler ledger, source stripe, type charge.*: the account is open again\n",
    ] {
        assert!(list.stdout.contains(part), "{part:?} in {}", list.stdout);
    }

    let stop = ["--stop", "1", "--reason", "the receiver is slow"];
    let ran = bulk(&app, &stop).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    for part in ["bulk 1 is stopped", "handlers pause NAME"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
    let stopped = standing(&app, first).await;
    assert!(stopped.1 < 6, "it was too quick to be stopped: {stopped:?}");
    let ran = bulk(&app, &stop).await;
    assert_eq!(ran.code, Some(1), "{}", ran.said());
    assert!(ran.stderr.contains("bulk 1 is stopped"), "{}", ran.stderr);
    // The node opens pages all the while: of this one no more.
    let other = post(
        &app,
        "/v1/replays",
        &json!({"dry_run": false, "reason": "x", "since": "2020-01-01T00:00:00Z", "handler": "report"}),
    )
    .await;
    assert_eq!(other.0, 202, "{other:?}");
    until_standing(&app, 2, "complete").await;
    assert_eq!(standing(&app, first).await, stopped);

    // What has not ended stands first, however old it is.
    let list = read(&app, &["--list"]).await;
    assert_eq!(words(&list, "state"), ["stopped", "complete"], "{list}");
    assert_eq!(
        (&list[0]["bulk"], &list[0]["rate"], &list[0]["actor"]),
        (&json!(1), &json!(1), &json!("api:local"))
    );
    let shown = bulk(&app, &["--show", "1"]).await;
    assert_eq!(shown.code, Some(0), "{}", shown.said());
    for part in [
        "state     stopped\n",
        "means     dead, handler ledger, source stripe, type charge.*\n",
        "received  2020-01-01T00:00:00.000Z to ",
        "  started    api:local: the account is open again\n",
        "  stopped    cli:",
        ": the receiver is slow\n",
    ] {
        assert!(shown.stdout.contains(part), "{part:?} in {}", shown.stdout);
    }
    assert!(shown.stderr.contains("replay --continue 1"), "{shown:?}");
    let (_, api) = app.get("/v1/replays/1").await;
    assert_eq!(words(&api["history"], "what"), ["started", "stopped"]);

    let go_on = ["--continue", "1", "--reason", "it has recovered"];
    let ran = bulk(&app, &go_on).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    until_booked(&app, 12).await;
    assert_eq!(runs(&app).await, [(2, 12)]);
    // The service may be down.
    app.stop().await;
    let shown = read(&app, &["--show", "1"]).await;
    assert_eq!(
        words(&shown["history"], "what"),
        ["started", "stopped", "continued", "complete"]
    );
    assert_eq!(shown["replayed"], 6, "{shown}");
    let unknown = bulk(&app, &["--show", "7"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(
        unknown.stderr.contains("there is no bulk replay 7")
            && unknown.stderr.contains("replay --list"),
        "{unknown:?}"
    );
    app.db.verify().await;
}
