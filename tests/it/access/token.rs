//! A token's life: made, used, ended.

use std::time::Duration;

use oncehook::domain::Role;
use serde_json::Value;

use crate::support::{Action, FakeClock, PgProxy, TestApp, TestDb, oncehook, until};

use super::{HOLDS, ask, create, get, until_outdated};

#[tokio::test]
async fn a_revoked_token_is_refused_within_a_second_on_every_node() {
    let db = TestDb::new().await;
    let (id, token) = create(&db, "shop", &[Role::Read], None).await;
    let mut app = TestApp::builder().on(db).start().await;
    let other = app.another_node().await;
    let nodes = [app.api, other.api];
    let id = id.to_string();
    let revoke = ["token", "revoke", &id, "--reason", "was in a public log"];
    for api in nodes {
        assert_eq!(get(api, "/v1/events", Some(&token)).await, 200);
    }
    let revoked = oncehook(&app.config(), &revoke, &[]).await;
    assert_eq!(revoked.code, Some(0), "{}", revoked.said());
    // It is committed by now, so a request that begins a second from here comes after the second.
    until_outdated(async |outdated| {
        for api in nodes {
            let status = get(api, "/v1/events", Some(&token)).await;
            assert!(status == 401 || !outdated, "accepted after {HOLDS:?}");
        }
    })
    .await;
    let again = oncehook(&app.config(), &revoke, &[]).await;
    assert_eq!(again.code, Some(1), "{}", again.said());
    assert!(again.stderr.contains("revoked already"), "{}", again.said());
    let audit: Vec<String> = app
        .db
        .all("SELECT concat_ws(' ', split_part(actor, ':', 1), action, subject, reason, after->>'name') FROM oncehook.audit ORDER BY id")
        .await;
    assert_eq!(
        audit,
        [
            format!("test token.create {id} shop"),
            format!("cli token.revoke {id} was in a public log shop")
        ]
    );
}

#[tokio::test]
async fn a_token_ends_by_the_databases_clock() {
    let Some(clock) = FakeClock::new() else {
        return;
    };
    let db = TestDb::new().await;
    let hour = Duration::from_hours(1);
    let (_, lasting) = create(&db, "lasting", &[Role::Read], Some(hour)).await;
    let (ended_id, ended) = create(&db, "ended", &[Role::Read], None).await;
    let (_, short) = create(&db, "short", &[Role::Read], Some(Duration::from_secs(3))).await;
    db.execute(&format!(
        "UPDATE oncehook.token SET expires_at = now() - interval '1 minute' WHERE id = {ended_id}"
    ))
    .await;
    let mut app = TestApp::builder().on(db).start().await;
    let mut nodes = Vec::new();
    for offset in ["+7200", "-7200"] {
        clock.step(offset);
        nodes.push(app.another_node_in(clock.env(Duration::ZERO)).await);
        let api = nodes.last().unwrap().api;
        let said = nodes.last().unwrap().output();
        let logged: Value = serde_json::from_str(said.lines().nth(1).unwrap()).unwrap();
        let at: jiff::Timestamp = logged["timestamp"].as_str().unwrap().parse().unwrap();
        let off = at.duration_since(jiff::Timestamp::now()).as_secs();
        assert!(
            (7_000..7_300).contains(&off.abs()),
            "its clock is {off} s off"
        );
        assert_eq!(
            get(api, "/v1/events", Some(&lasting)).await,
            200,
            "{offset}"
        );
        assert_eq!(get(api, "/v1/events", Some(&ended)).await, 401, "{offset}");
    }
    // One that ends while it is used.
    let used_until = async || get(app.api, "/v1/events", Some(&short)).await == 401;
    until("it ends", used_until).await;
    let over =
        "SELECT expires_at <= now() + interval '50 ms' FROM oncehook.token WHERE name = 'short'";
    assert!(app.db.one::<bool>(over).await, "not before its time");
}

#[tokio::test]
async fn the_last_use_is_kept_once_a_minute_and_nobody_waits_for_it() {
    let db = TestDb::new().await;
    let (first_id, first) = create(&db, "first", &[Role::Read], None).await;
    let (second_id, second) = create(&db, "second", &[Role::Read], None).await;
    let proxy = PgProxy::start(&db.url).await;
    let url = proxy.url(&db.name);
    let app = TestApp::builder().on(db).database_url(url).start().await;
    let used = async |id: i64| {
        app.db
            .one::<bool>(&format!("SELECT coalesce(last_used_at > now() - interval '10 s', false) FROM oncehook.token WHERE id = {id}"))
            .await
    };
    // Nothing passes from that write on, and the request is answered all the same.
    proxy.arm("SET last_used_at", Action::FreezeBefore);
    assert_eq!(get(app.api, "/v1/nothing", Some(&first)).await, 404);
    proxy.until_fired(1).await;
    assert!(!used(first_id).await);
    proxy.thaw();
    until("the last use is kept", async || used(first_id).await).await;

    let aged = |id: i64, age: &str| {
        format!("UPDATE oncehook.token SET last_used_at = now() - interval '{age}' WHERE id = {id}")
    };

    // A refused one was not used.
    let wrong = format!("oht_{second_id}_{}", "0".repeat(64));
    assert_eq!(get(app.api, "/v1/events", Some(&wrong)).await, 401);
    assert!(!used(second_id).await);

    // Within the minute it stays, after it it is written again. The first one is used until its node has
    // asked anew, and the second one after it: a write for the first one would be there before.
    app.db.execute(&aged(first_id, "50 s")).await;
    app.db.execute(&aged(second_id, "61 s")).await;
    until_outdated(async |_| {
        assert_eq!(get(app.api, "/v1/events", Some(&first)).await, 200);
    })
    .await;
    until("the second one's use is kept again", async || {
        assert_eq!(get(app.api, "/v1/events", Some(&second)).await, 200);
        used(second_id).await
    })
    .await;
    assert!(!used(first_id).await, "written twice within a minute");
}

#[tokio::test]
async fn what_a_client_does_is_audited_under_its_name() {
    let db = TestDb::new().await;
    let (_, token) = create(&db, "support", &[Role::Operate], None).await;
    let app = TestApp::builder().on(db).stripe("stripe").start().await;
    let body = r#"{"reason":"ledger is migrated"}"#;
    let pause = "POST /v1/sources/stripe/pause";
    let answer = ask(app.api, pause, Some(&token), body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let actor = "SELECT actor FROM oncehook.audit WHERE action = 'source.pause'";
    assert_eq!(app.db.one::<String>(actor).await, "api:support");
}

#[tokio::test]
async fn the_command_line_makes_lists_and_ends_tokens() {
    let app = TestApp::builder().start().await;
    let run = async |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        oncehook(&app.config(), &words, &[("USER", "eva")]).await
    };
    let none = run("token list").await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), ""));
    assert!(none.stderr.contains("no tokens"), "{}", none.stderr);

    // The token alone is on standard output, so that it can be written to a file.
    let made = run("token create shop --role submit --role read --role read --expires 90d").await;
    assert_eq!(made.code, Some(0), "{}", made.said());
    let token = made.stdout.trim_end();
    assert!(
        token.starts_with("oht_1_") && token.len() == 6 + 64,
        "{token}"
    );
    assert!(
        made.stderr.contains("token 1 of shop, good until 20"),
        "{}",
        made.stderr
    );
    assert_eq!(get(app.api, "/v1/events", Some(token)).await, 200);

    let made = run("token create shop --role operate --json").await;
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!(made["id"].to_string(), "2");
    assert_eq!(made["expires_at"], Value::Null);
    assert!(made["token"].as_str().unwrap().starts_with("oht_2_"));

    let ended = run("token revoke 2 --reason changed").await;
    assert!(
        ended.stdout.contains("revoked token 2 of shop"),
        "{}",
        ended.said()
    );
    let unknown = run("token revoke 3 --reason x").await;
    assert_eq!(unknown.code, Some(1), "{}", unknown.said());
    assert!(
        unknown.stderr.contains("there is no token 3"),
        "{}",
        unknown.said()
    );

    let listed = run("token list --json").await;
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed[0]["roles"], serde_json::json!(["read", "submit"]));
    assert_eq!(listed[0]["state"], "living");
    assert_eq!(listed[0]["created_by"], "cli:eva");
    assert_eq!(listed[1]["state"], "revoked");
    assert_eq!(listed[1]["revoked_by"], "cli:eva");
    let page = run("token list").await.stdout;
    assert!(
        page.contains("1  shop  read submit  living until 20"),
        "{page}"
    );
    assert!(
        !page.contains(&token[6..]) && !page.contains("hash"),
        "{page}"
    );
}
