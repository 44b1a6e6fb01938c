//! Every route of the API listener with every token, and the one answer of all refusals.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use oncehook::domain::Role;

use crate::support::{TestApp, TestDb, oncehook};

use super::{Answer, ask, create};

/// Every route: how it is written in `src/http`, a request, the roles of which it needs one, and what it
/// answers to who has it.
const ROUTES: [(&str, &str, &[Role], u16); 21] = [
    ("/metrics", "GET /metrics", &[Role::Read], 200),
    ("/v1/events", "GET /v1/events", &[Role::Read], 200),
    (
        "/v1/events/{source}/{key:.+}",
        "GET /v1/events/a/b",
        &[Role::Read],
        404,
    ),
    (
        "/v1/events/{source}/{key:.+}/raw",
        "GET /v1/events/a/b/raw",
        &[Role::Read],
        404,
    ),
    (
        "/v1/events/{source}/{key:.+}/wait",
        "GET /v1/events/a/b/wait",
        &[Role::Read],
        404,
    ),
    (
        "/v1/events/{source}/{key:.+}/replay",
        "POST /v1/events/a/b/replay",
        &[Role::Operate],
        400,
    ),
    (
        "/v1/events/{source}/{key:.+}/resolve",
        "POST /v1/events/a/b/resolve",
        &[Role::Operate],
        400,
    ),
    ("/v1/handlers", "GET /v1/handlers", &[Role::Read], 200),
    ("/v1/sources", "GET /v1/sources", &[Role::Read], 200),
    (
        "/v1/{kind:handlers|sources}/{name}/{verb:pause|resume}",
        "POST /v1/handlers/none/pause",
        &[Role::Operate],
        404,
    ),
    (
        "/v1/{kind:handlers|sources}/{name}/{verb:pause|resume}",
        "POST /v1/sources/none/resume",
        &[Role::Operate],
        404,
    ),
    ("/v1/replays", "GET /v1/replays", &[Role::Read], 200),
    ("/v1/replays", "POST /v1/replays", &[Role::Operate], 400),
    (
        "/v1/replays/{bulk}",
        "GET /v1/replays/1",
        &[Role::Read],
        404,
    ),
    (
        "/v1/replays/{bulk}/{verb:stop|continue|give-up}",
        "POST /v1/replays/1/stop",
        &[Role::Operate],
        400,
    ),
    // None of ours is written as none, so that nothing tells what there is.
    ("", "GET /v1/nothing", &[Role::Read], 404),
    ("", "DELETE /v1/events", &[Role::Operate], 405),
    ("/v1/operations", "GET /v1/operations", &[Role::Read], 200),
    (
        "/v1/operations/{operation}",
        "POST /v1/operations/pay",
        &[Role::Submit],
        404,
    ),
    (
        "/v1/operations/{operation}",
        "GET /v1/operations/0190f5e4-0000-7000-8000-000000000000",
        &[Role::Read, Role::Submit],
        404,
    ),
    (
        "/v1/operations/{operation}/keys/{key:.+}",
        "GET /v1/operations/pay/keys/k/1",
        &[Role::Read, Role::Submit],
        404,
    ),
];

/// Whose answers need no token.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// The routes that `src/http` mounts on the API listener.
fn mounted() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // The webhooks' own, on the public listener, and what a unit test mounts.
        if ["inbox.rs", "wire_tests.rs"]
            .iter()
            .any(|name| path.ends_with(name))
            || path.extension().is_none_or(|found| found != "rs")
        {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for (at, word) in code.match_indices("web::resource(") {
            let rest = code[at + word.len()..].trim_start();
            let pattern = rest
                .strip_prefix('"')
                .and_then(|rest| rest.split('"').next());
            let pattern = pattern.unwrap_or_else(|| {
                panic!("{}: a route that this test cannot read", path.display())
            });
            found.insert(pattern.to_owned());
        }
    }
    found
}

#[test]
fn the_table_has_every_route() {
    let listed = ROUTES.iter().map(|(pattern, ..)| *pattern).chain(OPEN);
    let listed: BTreeSet<String> = listed
        .filter(|pattern| !pattern.is_empty())
        .map(str::to_owned)
        .collect();
    assert_eq!(mounted(), listed, "say who may use it, in ROUTES");
}

#[tokio::test]
async fn every_route_takes_only_its_role() {
    let db = TestDb::new().await;
    let mut tokens = Vec::new();
    for role in Role::ALL {
        let (_, text) = create(&db, role.as_str(), &[role], None).await;
        tokens.push((role, text));
    }
    let (_, all) = create(&db, "all", &Role::ALL, None).await;
    let app = TestApp::builder().on(db).stripe("stripe").start().await;
    for (_, request, needed, status) in ROUTES {
        let refused = ask(app.api, request, None, "[]").await;
        assert_eq!(refused.status, 401, "{request} without a token");
        for (role, text) in &tokens {
            let answer = ask(app.api, request, Some(text), "[]").await;
            if needed.contains(role) {
                assert_eq!(answer.status, status, "{request} as {role:?}: {answer:?}");
            } else {
                assert_eq!(answer.status, 403, "{request} as {role:?}");
                for needed in needed {
                    let name = format!("\\\"{}\\\"", needed.as_str());
                    assert!(answer.body.contains(&name), "{}", answer.body);
                }
            }
        }
        let answer = ask(app.api, request, Some(&all), "[]").await;
        assert_eq!(answer.status, status, "{request} with every role");
    }
    // The path is read as the router reads it.
    let encoded = "POST /v1/oper%61tions/pay";
    let (operate, submit) = (&tokens[1].1, &tokens[2].1);
    let answer = ask(app.api, encoded, Some(operate), "").await;
    assert_eq!(answer.status, 403, "{answer:?}");
    let answer = ask(app.api, encoded, Some(submit), "").await;
    assert_eq!(answer.status, 404, "{answer:?}");
    for path in OPEN {
        let answer = ask(app.api, &format!("GET {path}"), None, "").await;
        assert_eq!(answer.status, 200, "{path}");
    }
}

#[tokio::test]
async fn every_refusal_has_one_answer_and_its_reason_in_the_log() {
    let db = TestDb::new().await;
    let role = [Role::Read];
    let (good_id, good) = create(&db, "good", &role, None).await;
    let (expired_id, expired) = create(&db, "expired", &role, None).await;
    let (revoked_id, revoked) = create(&db, "revoked", &role, None).await;
    db.execute(&format!(
        "UPDATE oncehook.token SET expires_at = now() - interval '1 second' WHERE id = {expired_id}"
    ))
    .await;
    let app = TestApp::builder().on(db).start().await;
    let ended = oncehook(
        &app.config(),
        &["token", "revoke", &revoked_id.to_string(), "--reason", "x"],
        &[],
    )
    .await;
    assert_eq!(ended.code, Some(0), "{}", ended.said());
    let secret = good.rsplit('_').next().unwrap();
    let wrong = format!("oht_{good_id}_{}", "0".repeat(64));
    let unknown = format!("oht_987654_{secret}");
    let broken = format!("oht_{good_id}_{}", &secret[..63]);
    for (reason, token) in [
        ("missing", None),
        ("missing", Some("another kind of token")),
        ("malformed", Some(broken.as_str())),
        ("unknown", Some(&unknown)),
        ("wrong-secret", Some(&wrong)),
        ("expired", Some(&expired)),
        ("revoked", Some(&revoked)),
    ] {
        let answer = ask(app.api, "GET /v1/events", token, "").await;
        assert_eq!(
            answer,
            Answer {
                status: 401,
                challenge: Some("Bearer".to_owned()),
                body: answer.body.clone(),
            },
            "{reason}"
        );
        let first = ask(app.api, "GET /v1/events", None, "").await;
        assert_eq!(answer.body, first.body, "{reason}");
        app.until_logged(&format!("\"reason\":\"{reason}\"")).await;
    }
    for id in [good_id, expired_id, revoked_id, 987_654] {
        app.until_logged(&format!("\"token\":{id}")).await;
    }
    let answer = ask(app.api, "GET /v1/events", Some(&good), "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let said = app.output();
    for text in [secret, "0".repeat(64).as_str(), "another kind"] {
        assert!(!said.contains(text), "{text} is in the log");
    }
    let page = ask(app.api, "GET /metrics", Some(&good), "").await.body;
    let counted = "oncehook_api_requests_refused_total{reason=\"wrong-secret\"} 1";
    assert!(page.contains(counted), "{page}");
}

#[tokio::test]
async fn refusals_are_logged_once_a_second() {
    let db = TestDb::new().await;
    create(&db, "good", &[Role::Read], None).await;
    let app = TestApp::builder().on(db).start().await;
    let began = Instant::now();
    for _ in 0..40 {
        let answer = ask(app.api, "GET /v1/events", None, "").await;
        assert_eq!(answer.status, 401);
    }
    let most = began.elapsed().as_secs() + 1;
    let logged = app.output().matches("API request answered 401").count() as u64;
    assert!((1..=most).contains(&logged), "{logged} lines in {most} s");
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "too slow to tell"
    );
}
