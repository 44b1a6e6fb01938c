//! What is hashed and compared: the bytes on the wire, in constant time, or nothing is written.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::raw::RawHttp;
use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{TestApp, inbox};

use super::calls::{self, Call};
use super::{start, start_with, state, stored, until_booked};

/// An event that every preset can read, in an odd spelling.
const ODD: &str = "{ \"type\":\"a\\/b\",\t\"livemode\" : true, \"z\":1, \"a\": 2,\r\n  \"id\" : \"evt_1\", \"é\": \"\\u00e9\" }\n";

/// The body signed by every preset that signs it whole.
fn everywhere(body: &str) -> [Call; 4] {
    [
        calls::stripe(body),
        calls::standard("evt_1", body),
        calls::github("evt_1", "push", body),
        calls::shop(body),
    ]
}

#[tokio::test]
async fn f1_the_bytes_received_are_hashed_and_kept_and_no_other_spelling_of_them() {
    let inbox = start().await;
    let again: Value = serde_json::from_str(ODD).unwrap();
    let again = again.to_string();
    for call in everywhere(ODD) {
        let answer = call.clone().body(again.as_str()).to(inbox.public).await;
        assert_eq!(answer.status, 401, "{}", call.path);
    }
    assert_eq!(stored(&inbox.db).await, [0, 0, 0]);
    for call in everywhere(ODD) {
        let answer = call.to(inbox.public).await;
        assert_eq!(answer.status, 200, "{}: {}", call.path, answer.body);
    }
    let bodies: Vec<Vec<u8>> = inbox.db.all("SELECT body FROM oncehook.request").await;
    assert_eq!(bodies, vec![ODD.as_bytes(); 4]);
    until_booked(&inbox.db, 4).await;
    let handled: Vec<Vec<u8>> = inbox.db.all("SELECT body FROM app.ledger").await;
    assert_eq!(handled, bodies, "and so the handler gets them");
}

#[tokio::test]
async fn f2_characters_of_every_width_pass_under_every_preset() {
    let inbox = start().await;
    let wide = "e\u{301} \u{2028} 👍🏽 𝔘 ﷽ \u{feff}";
    let body =
        json!({"id": "evt_1", "type": "t", "livemode": true, "object": wide, "data": {"x": wide}})
            .to_string();
    let mut sent = everywhere(&body).to_vec();
    // Adyen signs the decoded text of the merchant's own reference.
    sent.push(calls::adyen(&[calls::adyen_item("psp_1", wide, 100)]));
    for call in &sent {
        assert_eq!(call.to(inbox.public).await.status, 200, "{}", call.path);
    }
    until_booked(&inbox.db, 5).await;
    let bodies: Vec<Vec<u8>> = inbox
        .db
        .all("SELECT body FROM oncehook.request ORDER BY source_id")
        .await;
    for call in sent {
        assert!(bodies.contains(&call.body), "{}", call.path);
    }
}

#[tokio::test]
async fn f3_whatever_is_absent_empty_or_misnamed_is_401_and_nothing_is_written() {
    let inbox = start().await;
    let body = ODD;
    let mut spoilt = Vec::new();
    for call in everywhere(body) {
        for (name, _) in &call.headers {
            // The id and type of GitHub's requests are not part of the check.
            if name.starts_with("X-GitHub") {
                continue;
            }
            spoilt.push(call.clone().without(name));
            spoilt.push(call.clone().header(name, ""));
            spoilt.push(call.clone().header(name, "  "));
            spoilt.push(call.clone().header(name, b"\xff\xfe"));
            spoilt.push(
                call.clone()
                    .without(name)
                    .header(&format!("{name}s"), call.value(name)),
            );
        }
        spoilt.push(Call::new(call.path.trim_start_matches("/webhooks/"), body));
    }
    let item = calls::adyen_item("psp_1", "order", 100);
    for signature in [Value::Null, json!(""), json!(7), json!("AAAA")] {
        let mut bad = item.clone();
        bad["NotificationRequestItem"]["additionalData"]["hmacSignature"] = signature;
        spoilt.push(calls::adyen(&[bad]));
    }
    spoilt.push(calls::adyen(&[]));
    spoilt.push(Call::new("adyen", ""));
    spoilt.push(Call::new("adyen", "\0\u{1}"));
    let mut bodies = Vec::new();
    for call in &spoilt {
        let answer = call.to(inbox.public).await;
        assert_eq!(answer.status, 401, "{call:?}");
        bodies.push(answer.body);
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "one body for every reason");
    assert_eq!(stored(&inbox.db).await, [0, 0, 0]);
    // Header names match in any letter case.
    for call in everywhere(body) {
        let mut shouted = Call::new(call.path.trim_start_matches("/webhooks/"), body);
        for (name, value) in &call.headers {
            shouted = shouted.header(&name.to_ascii_uppercase(), value);
        }
        assert_eq!(shouted.to(inbox.public).await.status, 200, "{}", call.path);
    }
}

#[tokio::test]
async fn f4_one_good_signature_among_several_is_enough() {
    let old = "whsec_oldoldKey0000aB12cD34eF56gH78iJ90";
    let mut source = inbox::stripe_source();
    let mut second = inbox::source("x", "stripe", old, &oncehook::provider::Options::default());
    second.secrets[0].label = "old".into();
    source.secrets.append(&mut second.secrets);
    let mut sources = calls::sources();
    sources[0] = source;
    let inbox = start_with(sources).await;

    let body = ODD;
    let stamp = signer::now_s();
    let mac = |secret: &str| {
        let full = signer::stripe(secret, stamp, body.as_bytes());
        full.split_once("v1=").unwrap().1.to_owned()
    };
    let (good, other, bad) = (mac(STRIPE_SECRET), mac(old), "0".repeat(64));
    for (value, expected) in [
        (format!("t={stamp},v1={good},v1={bad}"), 200),
        (format!("t={stamp},v1={bad},v1={good}"), 200),
        (format!("t={stamp},v1={bad},v1={other}"), 200),
        (
            format!("v1=xyz,v1={bad},t={stamp},v0={bad},v1=,=,v1={good},junk"),
            200,
        ),
        (format!("t={stamp},v1={bad},v1={}", &good[1..]), 401),
        (format!("t={stamp},v0={good}"), 401),
        (format!("t={stamp},v2={good},v1={bad}"), 401),
        (format!("t={stamp},V1={good}"), 401),
    ] {
        let call = Call::new("stripe", body).header("Stripe-Signature", &value);
        assert_eq!(call.to(inbox.public).await.status, expected, "{value}");
    }
    let signed = calls::standard("evt_1", body);
    let good = signed.value("webhook-signature");
    let bad = format!("v1,{}", STANDARD.encode([0; 32]));
    let of_other_version = good.replace("v1,", "v2,");
    for (value, expected) in [
        (format!("{good} {bad}"), 200),
        (format!("{bad} {good}"), 200),
        (format!("v1,!!! {bad} v1a,x {good} junk"), 200),
        (bad.clone(), 401),
        (of_other_version.clone(), 401),
        (format!("{of_other_version} {bad}"), 401),
    ] {
        let call = signed.clone().header("webhook-signature", &value);
        assert_eq!(call.to(inbox.public).await.status, expected, "{value}");
    }
}

#[tokio::test]
async fn f5_the_signed_time_is_a_number_and_near_both_ways() {
    let inbox = start().await;
    let now = signer::now_s();
    let twenty = "1".repeat(20);
    let cases = [
        ((now - 290).to_string(), 200),
        ((now + 290).to_string(), 200),
        ((now - 310).to_string(), 401),
        ((now + 310).to_string(), 401),
        (String::new(), 401),
        ("abc".into(), 401),
        ("-1".into(), 401),
        ("1e9".into(), 401),
        (format!("{now}.0"), 401),
        (format!("+{now}"), 401),
        (format!("0x{now:x}"), 401),
        (twenty, 401),
        ((now * 1000).to_string(), 401),
    ];
    let body = ODD;
    for (time, expected) in &cases {
        // The signature over that very text is right.
        let mac = |key: &[u8], parts: &[&[u8]]| signer::hmac_sha256(key, parts);
        let of_stripe = mac(
            STRIPE_SECRET.as_bytes(),
            &[time.as_bytes(), b".", body.as_bytes()],
        );
        let key = STANDARD.decode(&calls::STANDARD_SECRET[6..]).unwrap();
        let of_standard = mac(&key, &[b"evt_1.", time.as_bytes(), b".", body.as_bytes()]);
        for call in [
            Call::new("stripe", body).header(
                "Stripe-Signature",
                format!("t={time},v1={}", hex::encode(of_stripe)),
            ),
            Call::new("standard", body)
                .header("webhook-id", "evt_1")
                .header("webhook-timestamp", time)
                .header(
                    "webhook-signature",
                    format!("v1,{}", STANDARD.encode(of_standard)),
                ),
            calls::shop_at(time, body),
        ] {
            let answer = call.to(inbox.public).await;
            assert_eq!(answer.status, *expected, "{} at {time:?}", call.path);
        }
    }
    assert_eq!(stored(&inbox.db).await, [3, 3, 3]);
}

#[tokio::test]
async fn f6_a_captured_request_sent_again_inside_the_window_is_a_duplicate() {
    let inbox = start().await;
    for captured in everywhere(ODD) {
        let first = captured.to(inbox.public).await;
        let again = captured.to(inbox.public).await;
        assert_eq!((first.status, again.status), (200, 200));
        assert_eq!(first.body, again.body);
        assert!(!first.replayed() && again.replayed());
    }
    until_booked(&inbox.db, 4).await;
    assert_eq!(inbox.db.count("outcome").await, 4);
    assert_eq!(inbox.db.count("receipt").await, 4);
}

#[tokio::test]
async fn f7_signatures_of_a_wrong_length_or_alphabet_are_no_match_and_the_connection_serves_on() {
    let inbox = start().await;
    let mut raw = RawHttp::connect(inbox.public).await;
    for (call, name) in everywhere(ODD).into_iter().zip([
        "Stripe-Signature",
        "webhook-signature",
        "X-Hub-Signature-256",
        "X-Shop-Signature",
    ]) {
        let good = call.value(name);
        let (cut, last) = good.split_at(good.len() - 1);
        let wrong = if last == "0" { "1" } else { "0" };
        for value in [
            cut.to_owned(),
            format!("{good}0"),
            good.replace(['=', ','], ""),
            format!("{}0", &cut[..cut.len() - 1]) + wrong,
            format!("{}é", &cut[..cut.len() - 1]),
            format!("{cut}\u{2070}"),
            "v1=".into(),
            "é".into(),
        ] {
            assert!(raw.send(call.clone().header(name, &value).bytes()).await);
            let answer = raw.read_response().await.unwrap();
            assert_eq!(answer.status, 401, "{name}: {value}");
        }
        assert!(raw.send(call.bytes()).await);
        assert_eq!(raw.read_response().await.unwrap().status, 200, "{name}");
    }
}

#[tokio::test]
async fn f9_a_burst_of_refusals_raises_an_alert_that_names_the_source() {
    let app = TestApp::builder()
        .stripe("stripe-main")
        .setup(super::LEDGER)
        .sql_handler("ledger", "app.book", "")
        .start()
        .await;
    let good = calls::stripe_event("evt_1").at("/webhooks/stripe-main");
    assert_eq!(good.to(app.public).await.status, 200);
    app.until_outcome("stripe-main", "evt_1", "ledger").await;
    let before = app.timeline("stripe-main", "evt_1").await.unwrap();
    // Retries with a counter in the body and the old signature.
    let retried: Vec<Call> = (0..100)
        .map(|attempt| {
            let mut body: Value = serde_json::from_slice(&good.body).unwrap();
            body["attempt"] = attempt.into();
            good.clone().body(body.to_string())
        })
        .collect();
    for answer in super::at_once(app.public, retried).await {
        assert_eq!(answer.status, 401);
    }
    app.until_logged("burst of refused requests").await;
    let output = app.output();
    let alert = output
        .lines()
        .find(|line| line.contains("burst of refused"));
    assert!(alert.unwrap().contains("stripe-main"));
    let (_, metrics) = app.get("/metrics").await;
    let burst = r#"oncehook_refusal_bursts_total{source="stripe-main"} 1"#;
    assert!(metrics.as_str().unwrap().contains(burst), "{metrics}");
    let after = app.timeline("stripe-main", "evt_1").await.unwrap();
    assert_eq!(before, after, "the first good copy does not move");
}

/// `{"id":"evt_1","type":"order.paid"}` as gzip writes it.
const GZIPPED: &str = "H4sIAAAAAAACA6tWykxRslJKLSuJN1TSUSqpLEgFcvOLUlKL9AoSgXK1AM1MhSYiAAAA";

#[tokio::test]
async fn f10_of_a_compressed_body_the_wire_bytes_are_hashed_kept_and_answered() {
    let inbox = start().await;
    let gzip = STANDARD.decode(GZIPPED).unwrap();
    let plain = br#"{"id":"evt_1","type":"order.paid"}"#;
    // Signed over what it unpacks to: not what came.
    let unpacked = calls::shop(plain)
        .body(gzip.as_slice())
        .header("Content-Encoding", "gzip");
    assert_eq!(unpacked.to(inbox.public).await.status, 401);
    let wire = calls::shop(gzip.as_slice()).header("Content-Encoding", "gzip");
    assert_eq!(wire.to(inbox.public).await.status, 200);
    let body: Vec<u8> = inbox.db.one("SELECT body FROM oncehook.request").await;
    assert_eq!(body, gzip);
    // A header that lies about plain bytes changes nothing.
    let lying = calls::shop(plain).header("Content-Encoding", "gzip");
    assert_eq!(lying.to(inbox.public).await.status, 200);
    until_booked(&inbox.db, 1).await;
    assert_eq!(state(&inbox.db, "evt_1").await, None);
}

#[tokio::test]
async fn f11_no_content_type_decides_and_what_cannot_be_read_is_kept_counted_and_listed() {
    let app = TestApp::builder()
        .stripe("stripe")
        .source("github", "github", calls::GITHUB_SECRET, "")
        .setup(super::LEDGER)
        .sql_handler("ledger", "app.book", "")
        .start()
        .await;
    let event = |id: &str| calls::stripe_event(id);
    for call in [
        event("evt_1"),
        event("evt_2").header("Content-Type", "text/plain"),
        event("evt_3").header("Content-Type", "application/x-www-form-urlencoded"),
        event("evt_4").header("Content-Type", "\u{1f4a9};;"),
    ] {
        assert_eq!(call.to(app.public).await.status, 200);
    }
    // GitHub knows forms, Stripe does not.
    let form = "payload=%7B%22zen%22%3A%22a%22%7D";
    let answer = calls::github("g_1", "push", form).to(app.public).await;
    assert_eq!(answer.status, 200);
    until_booked(&app.db, 5).await;
    let odd = calls::stripe(form).header("Content-Type", "application/x-www-form-urlencoded");
    let (first, again) = (odd.to(app.public).await, odd.to(app.public).await);
    assert_eq!((first.status, again.status), (200, 200));
    assert_eq!(first.body, again.body);
    assert!(again.replayed());
    let (_, listed) = app.get("/v1/events?state=unreadable").await;
    let listed = listed["events"].as_array().unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(listed[0]["key"].as_str().unwrap().starts_with("sha256:"));
    let (_, metrics) = app.get("/metrics").await;
    let counted = r#"oncehook_events_unreadable_total{source="stripe"}"#;
    assert!(metrics.as_str().unwrap().contains(counted), "{metrics}");
    assert!(app.output().contains("a verified event cannot be read"));
    let body: Vec<u8> = app
        .db
        .one("SELECT body FROM oncehook.request r JOIN oncehook.event e ON e.request_id = r.id WHERE state = 'unreadable'")
        .await;
    assert_eq!(body, form.as_bytes());
}
