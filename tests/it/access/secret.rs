//! Where a token's secret is not.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use oncehook::domain::Token;
use serde_json::Value;

use crate::support::{TestApp, TestDb, oncehook};

use super::{ask, get};

/// All that the database holds, as `pg_dump` prints it.
async fn dump(db: &TestDb) -> String {
    let bin: String = db
        .one("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
        .await;
    let url = db.url.clone();
    let output = tokio::task::spawn_blocking(move || {
        let mut dump = Command::new(Path::new(&bin).join("pg_dump"));
        dump.arg("--dbname").arg(url).output().unwrap()
    })
    .await
    .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_secret_is_at_rest_nowhere_and_in_no_log() {
    let app = TestApp::builder()
        .stripe("stripe")
        .env("RUST_LOG", "trace")
        .start()
        .await;
    let create = ["token", "create", "shop", "--role", "read", "--json"];
    let made = oncehook(&app.config(), &create, &[("RUST_LOG", "trace")]).await;
    let json: Value = serde_json::from_str(&made.stdout).unwrap();
    let text = json["token"].as_str().unwrap();
    let token = Token::parse(text).unwrap();
    let secret = text.rsplit('_').next().unwrap();
    // Used, used wrongly, refused, looked at, ended.
    assert_eq!(get(app.api, "/v1/events", Some(text)).await, 200);
    let role = ask(app.api, "POST /v1/sources/stripe/pause", Some(text), "{}").await;
    let cut = ask(app.api, "GET /v1/events", Some(&text[..text.len() - 1]), "").await;
    assert_eq!((role.status, cut.status), (403, 401));
    let metrics = ask(app.api, "GET /metrics", Some(text), "").await.body;
    let list = oncehook(&app.config(), &["token", "list", "--json"], &[]).await;
    let revoke = ["token", "revoke", "1", "--reason", "x"];
    let revoked = oncehook(&app.config(), &revoke, &[]).await;
    assert_eq!(revoked.code, Some(0), "{}", revoked.said());
    let stored = dump(&app.db).await;
    let hash = hex::encode(token.hash().as_bytes());
    assert!(stored.contains(&hash), "the dump has the table");
    assert!(metrics.contains("oncehook_api_requests_refused_total"));
    let places = [
        ("the database", stored),
        ("the log", app.output()),
        ("the metrics", metrics),
        ("the list", list.said()),
        ("the answers", role.body + &cut.body),
        ("what create says beside it", made.stderr),
    ];
    // In hex a bytea would be found as well.
    let base64 = STANDARD_NO_PAD.encode(hex::decode(secret).unwrap());
    for (place, text) in &places {
        for form in [secret, &secret.to_uppercase(), &secret[..32], &base64] {
            assert!(!text.contains(form), "a secret is in {place}");
        }
        let beside = *place == "the database";
        assert!(beside || !text.contains(&hash), "a hash is in {place}");
    }
}
