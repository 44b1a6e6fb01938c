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
