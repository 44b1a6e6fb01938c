//! What `check` finds without asking anybody.

use std::fs;

use crate::support::oncehook;

const PASSWORD: &str = "hunter2-hunter2-hunter2";

#[tokio::test]
async fn check_refuses_a_database_url_that_serve_would_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("oncehook.toml");
    for url in [
        format!("mysql://u:{PASSWORD}@h/d"),
        format!("postgresql://u:{PASSWORD}@h:99999/d"),
        format!("postgresql://u:{PASSWORD}@h/d?sslmode=perhaps"),
        format!("postgresql://u:{PASSWORD}@h/d?no_such_option=1"),
        PASSWORD.to_owned(),
    ] {
        fs::write(&config, format!("[database]\nurl = {url:?}\n")).unwrap();
        let ran = oncehook(&config, &["check"], &[]).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("database.url"), "{ran:?}");
        assert!(!ran.said().contains(PASSWORD), "{ran:?}");

        let ran = oncehook(&config, &["check", "--json"], &[]).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["valid"], false, "{ran:?}");
        assert!(!ran.said().contains(PASSWORD), "{ran:?}");
    }
}

#[tokio::test]
async fn check_says_what_order_a_handler_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("oncehook.toml");
    let handler = |name: &str, lines: &str| {
        format!(
            "[[handler]]\nname = {name:?}\nkind = \"sql\"\ncall = \"app.book\"\nevents = [\"*:*\"]\n{lines}\n"
        )
    };
    let strict = "lane = \"entity\"\nlane_on_dead = \"hold\"\napply_if_newer = \"occurred_at\"";
    let text = [
        "[database]\nurl = \"postgresql://u@h/d\"\n".to_owned(),
        handler("free", ""),
        handler("lanes", "lane = \"json:/data/id\""),
        handler("strict", strict),
    ];
    fs::write(&config, text.concat()).unwrap();
    let ran = oncehook(&config, &["check"], &[]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let orders: Vec<&str> = ran
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("  order     "))
        .collect();
    assert_eq!(
        orders,
        [
            "none promised",
            "one at a time by json:/data/id; the next one runs after a dead letter",
            "one at a time by entity; a dead one holds the rest until a person decides; \
             older by occurred_at than what was applied is skipped",
        ]
    );
}

#[tokio::test]
async fn an_internal_source_has_no_url() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("oncehook.toml");
    let text = "[database]\nurl = \"postgresql://u@h/d\"\n[[source]]\nname = \"orders\"\nprovider = \"internal\"\n";
    fs::write(&config, text).unwrap();
    let ran = oncehook(&config, &["check"], &[]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stdout
            .contains("  url       none: events come from oncehook.emit"),
        "{ran:?}"
    );
    assert!(!ran.stdout.contains("/webhooks/orders"), "{ran:?}");
    assert!(!ran.stdout.contains("  conflict"), "{ran:?}");
}

#[tokio::test]
async fn verify_without_a_configuration_says_that_alone() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nowhere.toml");
    let ran = oncehook(&nowhere, &["verify"], &[]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("nowhere.toml"), "{ran:?}");
    assert!(!ran.stderr.contains("handlers are not known"), "{ran:?}");
}
