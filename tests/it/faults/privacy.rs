//! Everything that happened can be found by number and reason; nothing that was secret can be
//! found at all.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::raw::RawHttp;
use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{TestApp, TestDb, inbox, oncehook, until};

use super::calls::{self, Call};
use super::{LEDGER, at_once, until_booked};

/// Columns of schema `oncehook` that hold a text, by table and name.
async fn holding(db: &TestDb, needle: &str) -> Vec<String> {
    let columns = db
        .rows(
            "SELECT c.relname::text, a.attname::text, a.atttypid = 'bytea'::regtype FROM pg_attribute a
               JOIN pg_class c ON c.oid = a.attrelid
              WHERE c.relnamespace = 'oncehook'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
                AND a.attnum > 0 AND NOT a.attisdropped",
            &[],
        )
        .await;
    assert!(columns.len() > 50, "there is something to search");
    let mut found = Vec::new();
    for column in columns {
        let (table, name): (String, String) = (column.get(0), column.get(1));
        let holds = if column.get(2) {
            format!("position(convert_to($1::text, 'UTF8') in {name}) > 0")
        } else {
            format!("position($1::text in {name}::text) > 0")
        };
        let sql = format!("SELECT 1 FROM oncehook.{table} WHERE {holds} LIMIT 1");
        if !db.rows(&sql, &[&needle]).await.is_empty() {
            found.push(format!("{table}.{name}"));
        }
    }
    found.sort();
    found
}

async fn metrics(app: &TestApp) -> String {
    let (_, page) = app.get("/metrics").await;
    page.as_str().unwrap().to_owned()
}

/// One counter of the metrics page; 0 when it is not there.
fn counted(page: &str, series: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test]
async fn f77_no_secret_reaches_a_log_a_metric_or_a_table() {
    let app = TestApp::builder()
        .stripe("stripe")
        .source(
            "keyed",
            "hmac",
            calls::SHOP_SECRET,
            // The signature travels in a header whose name means a login elsewhere.
            "[source.hmac]\nheader = \"X-Api-Key\"\nsigned = \"{header:Authorization}{body}\"\nevent_id = \"header:X-Auth-Token\"",
        )
        .setup(LEDGER)
        .sql_handler("ledger", "app.book", "")
        .env("RUST_LOG", "trace")
        .env("SOME_TOKEN", "tok_environment_1")
        .start()
        .await;
    let tokens = [
        ("Authorization", "Bearer tok_bearer_1"),
        ("Proxy-Authorization", "Basic tok_proxy_1"),
        ("Cookie", "session=tok_cookie_1"),
        ("X-Api-Key", "tok_apikey_1"),
        ("X-Auth-Token", "tok_auth_1"),
        ("X-Gitlab-Token", "tok_gitlab_1"),
        ("X-Unheard-Of", "tok_other_1"),
    ];
    let with_tokens = |call: Call| {
        let path = format!("{}?token=tok_query_1&tok_bare_1", call.path);
        tokens.iter().fold(call.at(&path), |call, (name, value)| {
            call.header(name, value)
        })
    };
    let good = calls::stripe_event("evt_1");
    let signature = good.value("Stripe-Signature");
    assert_eq!(with_tokens(good.clone()).to(app.public).await.status, 200);
    assert_eq!(with_tokens(good).to(app.public).await.status, 200);
    let conflict = inbox::event("evt_1", "charge.succeeded", json!({"other": 1})).to_string();
    assert_eq!(
        with_tokens(calls::stripe(conflict))
            .to(app.public)
            .await
            .status,
        200
    );
    let forged = Call::new("stripe", "{}").header("Stripe-Signature", "t=1,v1=tok_forged_1");
    assert_eq!(with_tokens(forged).to(app.public).await.status, 401);
    for path in [
        "/webhooks/tok_path_1",
        "/tok_path_1",
        "/webhooks/stripe/tok_path_1",
    ] {
        assert_eq!(
            with_tokens(Call::new("x", "{}"))
                .at(path)
                .to(app.public)
                .await
                .status,
            404
        );
    }
    let body = b"{}";
    let mac = signer::hmac_sha256(
        calls::SHOP_SECRET.as_bytes(),
        &[b"Bearer tok_signed_1", body],
    );
    let keyed = Call::new("keyed", body.as_slice())
        .header("Authorization", "Bearer tok_signed_1")
        .header("X-Auth-Token", "id_1")
        .header("X-Api-Key", hex::encode(mac));
    assert_eq!(keyed.to(app.public).await.status, 200);
    until_booked(&app.db, 2).await;
    until("the refusals are recorded", async || {
        app.db.count("rejected").await >= 3
    })
    .await;

    let mac = signature.split_once("v1=").unwrap().1;
    let secrets = [STRIPE_SECRET, &STRIPE_SECRET[6..], calls::SHOP_SECRET];
    for secret in secrets.into_iter().chain(TOKENS) {
        assert_eq!(holding(&app.db, secret).await, [""; 0], "{secret}");
        not_shown(&app, secret).await;
    }
    // What is needed to verify it again is kept beside the body, and in no log.
    assert!(!app.output().contains(mac));
    assert_eq!(holding(&app.db, mac).await, ["request.headers"]);
    assert_eq!(holding(&app.db, "token=***").await, ["request.query"]);
}

/// Everything secret that the requests below carry, and one in the environment.
const TOKENS: [&str; 13] = [
    "tok_bearer_1",
    "tok_proxy_1",
    "tok_cookie_1",
    "tok_apikey_1",
    "tok_auth_1",
    "tok_gitlab_1",
    "tok_other_1",
    "tok_query_1",
    "tok_bare_1",
    "tok_path_1",
    "tok_forged_1",
    "tok_signed_1",
    "tok_environment_1",
];

/// Neither in the log nor in the metrics nor on the API.
async fn not_shown(app: &TestApp, secret: &str) {
    assert!(!app.output().contains(secret), "{secret} in the log");
    let page = metrics(app).await;
    assert!(!page.contains(secret), "{secret} in the metrics");
    let (_, shown) = app.get("/v1/events/stripe/evt_1").await;
    assert!(!shown.to_string().contains(secret), "{secret} on the API");
}

const CARD: &str = "4242424242424242";

#[tokio::test]
async fn f78_a_card_number_is_nowhere_but_in_the_bytes_of_verified_bodies() {
    let failing = "
        CREATE FUNCTION app.fails(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
        DECLARE card text := oncehook.body_json(event) #>> '{data,object,card}';
        BEGIN
          CASE event.type
            WHEN 'cast' THEN PERFORM card::bool;
            WHEN 'unique' THEN INSERT INTO app.cards VALUES (card), (card);
            WHEN 'check' THEN INSERT INTO app.cards VALUES (card || 'x');
            WHEN 'raise' THEN RAISE EXCEPTION 'card % of % declined', card, 'jane@example.com';
            WHEN 'permanent' THEN RAISE EXCEPTION 'card % declined', card USING ERRCODE = 'OH001', DETAIL = card, HINT = card;
            ELSE RAISE EXCEPTION USING ERRCODE = '23505', MESSAGE = card, DETAIL = card;
          END CASE;
        END $$;
        CREATE TABLE app.cards (card text PRIMARY KEY CHECK (card !~ 'x'))";
    let app = TestApp::builder()
        .stripe("stripe")
        .setup(LEDGER)
        .setup(failing)
        .sql_handler(
            "ledger",
            "app.fails",
            "retry = { for = \"1s\", first = \"10ms\", max = \"20ms\" }",
        )
        .toml("[dispatch]\npoll = \"50ms\"")
        .env("RUST_LOG", "trace")
        .start()
        .await;
    let object = json!({"card": CARD, "mail": "jane@example.com"});
    let types = ["cast", "unique", "check", "raise", "permanent", "other"];
    for event_type in types {
        let body = inbox::event(&format!("evt_{event_type}"), event_type, object.clone());
        assert_eq!(
            calls::stripe(body.to_string()).to(app.public).await.status,
            200
        );
    }
    for broken in [
        format!("{{\"card\":\"{CARD}\""),
        format!("card={CARD}&mail=jane@example.com"),
        format!("{{\"id\":{{\"card\":\"{CARD}\"}}}}"),
        format!("{{\"id\":\"evt_t\",\"type\":[\"{CARD}\"],\"livemode\":\"{CARD}\"}}"),
    ] {
        assert_eq!(
            calls::stripe(broken.as_str()).to(app.public).await.status,
            200
        );
        assert_eq!(Call::new("stripe", broken).to(app.public).await.status, 401);
    }
    let mut other = inbox::event("evt_cast", "cast", object);
    other["more"] = CARD.into();
    assert_eq!(
        calls::stripe(other.to_string()).to(app.public).await.status,
        200
    );
    until("every event is given up", async || {
        app.db.count("outcome WHERE result = 'dead'").await == 6
    })
    .await;
    let output = app.output();
    let page = metrics(&app).await;
    for private in [CARD, "jane@example.com"] {
        assert!(!output.contains(private), "{private} in the log");
        assert!(!page.contains(private));
        let found = holding(&app.db, private).await;
        assert_eq!(found, ["conflict.body", "request.body"], "{private}");
    }
    for event_type in types {
        let (_, shown) = app
            .get(&format!("/v1/events/stripe/evt_{event_type}"))
            .await;
        assert!(!shown.to_string().contains(CARD), "{event_type}");
    }
    let errors: Vec<String> = app
        .db
        .all("SELECT DISTINCT error FROM oncehook.attempt WHERE error LIKE '%declined%' ORDER BY 1")
        .await;
    assert!(
        errors.iter().any(|error| error.contains("[digits]")),
        "{errors:?}"
    );
}

#[tokio::test]
async fn f79_no_id_type_or_header_forges_a_line() {
    const FORGED: &str = "{\"level\":\"ERROR\",\"message\":\"forged\"}";
    let app = TestApp::builder()
        .stripe("stripe")
        .setup(LEDGER)
        .setup(
            "CREATE FUNCTION app.fails(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no % %', event.key, event.type USING ERRCODE = 'OH001'; END $$",
        )
        .sql_handler("ledger", "app.fails", "")
        .env("RUST_LOG", "trace")
        .start()
        .await;
    let mut breaks = String::new();
    for separator in [
        "\n",
        "\r\n",
        "\r",
        "\u{2028}",
        "\u{85}",
        "\u{1b}[2K\u{1b}[1G",
        "\u{202e}",
    ] {
        breaks.push_str(separator);
        breaks.push_str(FORGED);
    }
    let long = format!("evt_{}", "l".repeat(900));
    for id in [format!("evt_1{breaks}"), long.clone()] {
        let body = inbox::event(&id, &format!("t{breaks}"), json!({"id": breaks}));
        let call = calls::stripe(body.to_string());
        for _ in 0..2 {
            let answer = call
                .clone()
                .header("User-Agent", "a\tb")
                .to(app.public)
                .await;
            assert_eq!(answer.status, 200);
        }
        let mut other = body;
        other["more"] = 1.into();
        assert_eq!(
            calls::stripe(other.to_string()).to(app.public).await.status,
            200
        );
    }
    until("both are given up", async || {
        app.db.count("outcome WHERE result = 'dead'").await == 2
    })
    .await;
    app.until_logged("dead letter").await;
    let output = app.output();
    assert!(output.lines().count() > 10);
    for line in output.lines() {
        let parsed: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert_ne!(parsed["message"], "forged", "{line}");
        assert!(
            !line.contains(['\u{2028}', '\u{1b}', '\u{202e}', '\u{85}']),
            "{line}"
        );
        assert!(!line.contains(&"l".repeat(300)), "cut: {line}");
    }
    // The same for people.
    for args in [vec!["events"], vec!["show", "stripe", &long]] {
        let ran = oncehook(&app.config(), &args, &[]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(
            ran.stdout.lines().all(|line| !line.starts_with('{')),
            "{}",
            ran.stdout
        );
        assert!(
            !ran.stdout
                .contains(['\u{2028}', '\u{1b}', '\u{202e}', '\r']),
            "{}",
            ran.stdout
        );
        assert!(!ran.stdout.contains(&"l".repeat(300)), "{}", ran.stdout);
    }
}

#[tokio::test]
async fn f79_text_logs_hold_the_line_too() {
    let mut app = TestApp::builder()
        .stripe("stripe")
        .setup(LEDGER)
        .setup(
            "CREATE FUNCTION app.fails(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION E'no\\n{\"level\":1}\\r\\u001b[2K % %', event.key, event.type; END $$",
        )
        .sql_handler("ledger", "app.fails", "")
        .toml("[log]\nformat = \"text\"\nlevel = \"trace\"")
        .start()
        .await;
    let id = "evt_1\n2026-12-02T06:00:00Z ERROR forged\r\u{1b}[2K";
    let body = inbox::event(id, &format!("t{id}"), json!({})).to_string();
    assert_eq!(calls::stripe(body).to(app.public).await.status, 200);
    app.until_logged("attempt failed").await;
    app.stop().await;
    let output = app.output();
    for line in output.lines().skip(1) {
        let first = line.chars().next().unwrap_or(' ');
        assert!(
            first.is_ascii_digit(),
            "each line begins with its time: {line:?}"
        );
        assert!(!line.starts_with("2026-12-02T06:00:00Z ERROR"), "{line}");
        assert!(!line.contains(['\u{1b}', '\r']), "{line:?}");
    }
}

/// Provokes every reason once; the source each is counted for.
async fn every_reason(app: &TestApp) -> BTreeMap<&'static str, &'static str> {
    let body = "{}";
    let now = signer::now_s();
    let at = |time: i64| {
        Call::new("stripe", body).header(
            "Stripe-Signature",
            signer::stripe(STRIPE_SECRET, time, body.as_bytes()),
        )
    };
    let mut provoked = BTreeMap::new();
    for (reason, source, status, call) in [
        (
            "missing_signature",
            "stripe",
            401,
            Call::new("stripe", body),
        ),
        (
            "malformed_signature",
            "stripe",
            401,
            Call::new("stripe", body).header("Stripe-Signature", "t=now"),
        ),
        (
            "bad_signature",
            "stripe",
            401,
            calls::stripe("[]").body(body),
        ),
        ("timestamp_too_old", "stripe", 401, at(now - 1_000)),
        ("timestamp_too_new", "stripe", 401, at(now + 1_000)),
        ("malformed_body", "adyen", 401, Call::new("adyen", "{")),
        ("unknown_source", "unknown", 404, Call::new("nobody", body)),
        (
            "headers_too_large",
            "stripe",
            431,
            calls::stripe(body).header("X-Large", "a".repeat(70_000)),
        ),
        (
            "body_too_large",
            "stripe",
            413,
            calls::stripe("a".repeat(5_000)),
        ),
    ] {
        assert_eq!(call.to(app.public).await.status, status, "{reason}");
        provoked.insert(reason, source);
    }
    for (reason, status, text) in [
        (
            "method_not_allowed",
            405,
            "GET /webhooks/stripe HTTP/1.1\r\nHost: x\r\n\r\n",
        ),
        (
            "body_broken",
            400,
            "POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnot a chunk\r\n",
        ),
        (
            "body_timeout",
            408,
            "POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{",
        ),
    ] {
        let mut raw = RawHttp::connect(app.public).await;
        raw.send(text).await;
        let answer = raw.read_response().await.unwrap();
        assert_eq!(answer.status, status, "{reason}");
        provoked.insert(reason, "stripe");
    }
    provoked
}

fn refused(page: &str, source: &str, reason: &str) -> u64 {
    let series =
        format!("oncehook_requests_refused_total{{source=\"{source}\",reason=\"{reason}\"}}");
    counted(page, &series)
}

#[tokio::test]
async fn f80_each_refusal_is_counted_recorded_and_said() {
    let app = TestApp::builder()
        .stripe("stripe")
        .source("adyen", "adyen", calls::ADYEN_SECRET, "")
        .toml("[limits]\nbody = \"4KiB\"\nbody_time = \"300ms\"")
        .start()
        .await;
    let provoked = every_reason(&app).await;
    assert_eq!(provoked.len(), ::oncehook::domain::Refusal::ALL.len());
    let page = metrics(&app).await;
    for (reason, source) in &provoked {
        assert_eq!(refused(&page, source, reason), 1, "{reason} in {page}");
    }
    let total: u64 = page
        .lines()
        .filter(|line| line.starts_with("oncehook_requests_refused_total{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(total, 12, "and nothing else");
    until("each has its row", async || {
        app.db.count("rejected").await == 12
    })
    .await;
    let reasons: Vec<String> = app
        .db
        .all("SELECT reason FROM oncehook.rejected ORDER BY reason COLLATE \"C\"")
        .await;
    assert_eq!(reasons, provoked.keys().copied().collect::<Vec<_>>());
    let empty = app.db.count("rejected WHERE peer IS NULL").await;
    assert_eq!(empty, 0);
    let digested = app
        .db
        .count("rejected WHERE octet_length(digest) = 32 AND size > 0")
        .await;
    assert!(digested >= 6, "{digested}");
    let output = app.output();
    for (reason, source) in &provoked {
        let said = output
            .lines()
            .filter(|line| line.contains("request refused"))
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["reason"] == *reason)
            .collect::<Vec<_>>();
        assert_eq!(said.len(), 1, "{reason}");
        let expected = if *source == "unknown" {
            "(unknown)"
        } else {
            source
        };
        assert_eq!(said[0]["source"], expected, "{reason}");
        assert!(
            said[0]["bytes"].is_u64() && said[0]["digest"].is_string(),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn f80_in_a_flood_rows_and_lines_are_sampled_and_counters_stay_exact() {
    let app = TestApp::builder().stripe("stripe").start().await;
    let began = Instant::now();
    let forged: Vec<Call> = (0..300)
        .map(|number| {
            let call = Call::new("stripe", format!("{{\"n\":{number}}}"));
            match number % 3 {
                0 => call,
                _ => call.header("Stripe-Signature", format!("t=1,v1={}", "0".repeat(64))),
            }
        })
        .collect();
    for answer in at_once(app.public, forged).await {
        assert_eq!(answer.status, 401);
    }
    // A second is begun at most so often.
    let seconds = 1 + i64::try_from(began.elapsed().as_secs()).unwrap();
    let page = metrics(&app).await;
    assert_eq!(refused(&page, "stripe", "missing_signature"), 100);
    assert_eq!(refused(&page, "stripe", "bad_signature"), 200);
    // Good traffic passes meanwhile, and the rows arrive.
    assert_eq!(
        calls::stripe_event("evt_1").to(app.public).await.status,
        200
    );
    until("the sampled rows are written", async || {
        app.db.count("rejected").await >= 20
    })
    .await;
    for reason in ["missing_signature", "bad_signature"] {
        let rows = app
            .db
            .count(&format!("rejected WHERE reason = '{reason}'"))
            .await;
        assert!(
            (10..=10 * seconds).contains(&rows),
            "{reason}: {rows} in {seconds} s"
        );
    }
    let lines = app.output().matches("request refused").count();
    assert!(
        lines <= 2 * usize::try_from(seconds).unwrap(),
        "{lines} lines"
    );
}
