//! Before the signature holds, bounded memory and time; after it, nothing is rounded, cut or lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::inbox::{self, Inbox};
use crate::support::raw::RawHttp;
use crate::support::{TestApp, TestDb};

use super::calls::{self, Call};
use super::{LEDGER, at_once, start, state, stored, until_booked};

/// A sender that is refused may go on into the void for a second; this is far beyond it.
const SECONDS: Duration = Duration::from_secs(10);

/// Most memory the process ever held, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn f33_endless_unsigned_bodies_end_in_413_and_memory_stays_flat() {
    let app = TestApp::builder().stripe("stripe").start().await;
    assert_eq!(
        calls::stripe_event("evt_1").to(app.public).await.status,
        200
    );
    let before = peak_kib(app.pid());
    let chunk = [b"10000\r\n".as_slice(), &vec![b'a'; 65_536], b"\r\n"].concat();
    let mut endless = Vec::new();
    for _ in 0..8 {
        let (chunk, address) = (chunk.clone(), app.public);
        endless.push(tokio::spawn(async move {
            let mut raw = RawHttp::connect(address).await;
            raw.send(
                "POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
            )
            .await;
            let began = Instant::now();
            while raw.send(&chunk).await {
                assert!(began.elapsed() < SECONDS, "it is never stopped");
            }
            raw.read_all().await
        }));
    }
    for one in endless {
        let answer = one.await.unwrap();
        // It may be lost to the reset of whoever goes on sending.
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 413"),
            "{answer}"
        );
    }
    let grown = peak_kib(app.pid()) - before;
    assert!(
        grown < 24 * 1_024,
        "{grown} KiB for eight bodies of at most 1 MiB"
    );
    assert_eq!(
        calls::stripe_event("evt_2").to(app.public).await.status,
        200
    );
}

#[tokio::test]
async fn f35_an_escaped_nul_hurts_nobody() {
    let inbox = start().await;
    let event = |id: &str, rest: &str| {
        calls::stripe(format!(
            r#"{{"id":"{id}","type":"t","livemode":true,{rest}}}"#
        ))
    };
    let handled = [
        event("evt_1", r#""note":"a\u0000b""#),
        event("evt_2", r#""a\u0000b":1"#),
        event("evt_3", r#""data":{"object":{"id":"a\u0000b"}}"#),
        event("evt_4", r#""note":"\\u0000 \ud834\udd1e \u0001\u001f""#),
        calls::standard("evt_5", r#"{"type":"t","data":{"id":"\u0000"}}"#),
        calls::shop(r#"{"id":"evt_6","data":{"order_id":"\u0000"}}"#),
        calls::adyen(&[calls::adyen_item("psp_1", "a\0b", 1)]),
    ];
    let unreadable = [
        event(r"evt\u0000", r#""a":1"#),
        event("evt_7", r#""account":"a\u0000b""#),
        calls::stripe(r#"{"id":"evt_8","type":"a\u0000","livemode":true}"#),
        calls::shop(r#"{"id":"\u0000"}"#),
        calls::adyen(&[calls::adyen_item("psp\0", "o", 1)]),
    ];
    for call in handled.iter().chain(&unreadable) {
        for replayed in [false, true] {
            let answer = call.to(inbox.public).await;
            assert_eq!(
                (answer.status, answer.replayed()),
                (200, replayed),
                "{call:?}"
            );
            assert!(!answer.body.contains("22P05") && !answer.body.contains("SQLSTATE"));
        }
    }
    until_booked(&inbox.db, 7).await;
    assert_eq!(inbox.db.count("event WHERE state = 'unreadable'").await, 5);
    let bodies: Vec<Vec<u8>> = inbox.db.all("SELECT body FROM oncehook.request").await;
    for call in handled.iter().chain(&unreadable) {
        assert!(bodies.contains(&call.body), "{call:?}");
    }
    assert_eq!(inbox.db.count("event WHERE key LIKE 'evt%'").await, 6);
}

#[tokio::test]
async fn f35_what_postgresql_refuses_harms_no_neighbour_in_the_batch() {
    let inbox = start().await;
    inbox
        .db
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF NEW.type = 'poison' THEN RAISE EXCEPTION 'x' USING ERRCODE = '22P05'; END IF; RETURN NEW; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON oncehook.event FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    // The first takes the writer's time, so that the others wait and form one batch.
    let mut sent: Vec<Call> = (0..80)
        .map(|number| calls::stripe_event(&format!("evt_{number}")))
        .collect();
    for place in [7, 40] {
        let id = format!("bad_{place}");
        let body = inbox::event(&id, "poison", json!({})).to_string();
        sent.insert(place, calls::stripe(body));
    }
    for answer in at_once(inbox.public, sent).await {
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    until_booked(&inbox.db, 80).await;
    assert_eq!(inbox.db.count("event WHERE state = 'unreadable'").await, 2);
    let reasons: Vec<String> = inbox
        .db
        .all("SELECT DISTINCT state_reason FROM oncehook.event WHERE state = 'unreadable'")
        .await;
    assert_eq!(reasons, ["the database refused what was read"]);
}

#[tokio::test]
async fn f35_a_database_that_cannot_hold_a_character_loses_no_event() {
    let db = Arc::new(TestDb::encoded("LATIN1").await);
    db.execute(LEDGER).await;
    let ledger = inbox::sql("ledger", "app.book");
    let inbox = Inbox::on(db, calls::sources(), vec![ledger], Some(inbox::dispatch())).await;
    let odd = ["evt_👍", "evt_\u{2028}"].map(calls::stripe_event);
    let mut sent: Vec<Call> = (0..20)
        .map(|number| calls::stripe_event(&format!("evt_é{number}")))
        .collect();
    sent.extend(odd.clone());
    for answer in at_once(inbox.public, sent).await {
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    until_booked(&inbox.db, 20).await;
    assert_eq!(inbox.db.count("event WHERE state = 'unreadable'").await, 2);
    for call in odd {
        assert!(
            call.to(inbox.public).await.replayed(),
            "known by its digest"
        );
    }
}

#[tokio::test]
async fn f36_numbers_keep_their_text() {
    let inbox = start().await;
    let mut bodies = Vec::new();
    for id in [
        "9007199254740993",
        "9007199254740992",
        "1234567890123456788",
        "1234567890123456789",
        "123456789012345678901234567890",
        "1.0",
        "1",
        "1e400",
        "-0",
    ] {
        let body = format!(r#"{{"id":{id},"amount":0.10,"a":1e400,"b":-0,"c":9007199254740993}}"#);
        let answer = calls::shop(body.as_str()).to(inbox.public).await;
        assert!(answer.status == 200 && !answer.replayed(), "{id}");
        assert_eq!(state(&inbox.db, id).await, None);
        bodies.push(body.into_bytes());
    }
    until_booked(&inbox.db, 9).await;
    let mut handled: Vec<Vec<u8>> = inbox.db.all("SELECT body FROM app.ledger").await;
    handled.sort_unstable();
    bodies.sort_unstable();
    assert_eq!(
        handled, bodies,
        "the handler gets them as they were written"
    );
}

#[tokio::test]
async fn f36_a_time_that_cannot_be_stops_nothing() {
    let inbox = start().await;
    let times = [
        "1764655200",
        "1e400",
        "-5",
        "1764655200.5",
        "253402300800",
        "9223372036854775808",
        "123456789012345678901234567890",
        "\"yesterday\"",
        "null",
        "{}",
        "true",
    ];
    for (number, time) in times.iter().enumerate() {
        let body =
            format!(r#"{{"id":"evt_{number}","type":"t","livemode":true,"created":{time}}}"#);
        assert_eq!(
            calls::stripe(body).to(inbox.public).await.status,
            200,
            "{time}"
        );
    }
    until_booked(&inbox.db, 11).await;
    assert_eq!(
        inbox.db.count("event WHERE occurred_at IS NOT NULL").await,
        1
    );
}

/// An event with a member nested so deep, the outermost object included.
fn deep(depth: usize, open: &str, close: &str) -> String {
    let levels = depth - 1;
    format!(
        r#"{{"id":"evt_{depth}","type":"t","livemode":true,"x":{}1{}}}"#,
        open.repeat(levels),
        close.repeat(levels)
    )
}

#[tokio::test]
async fn f37_nesting_is_limited_and_the_process_lives() {
    let inbox = start().await;
    let mut raw = RawHttp::connect(inbox.public).await;
    for (open, close, sign) in [("[", "]", "array"), ("{\"a\":", "}", "object")] {
        for (depth, readable) in [(127, true), (128, true), (129, false), (100_000, false)] {
            let body = deep(depth, open, close).replace("evt_", &format!("{sign}_"));
            for call in [
                calls::stripe(body.as_str()),
                calls::github(&format!("{sign}_{depth}"), "push", body.as_str()),
            ] {
                assert!(raw.send(call.bytes()).await);
                let answer = raw.read_response().await.unwrap();
                assert_eq!(answer.status, 200, "{sign} {depth}");
                let unsigned = Call::new("stripe", body.as_str());
                assert!(raw.send(unsigned.bytes()).await);
                assert_eq!(raw.read_response().await.unwrap().status, 401);
            }
            let key = format!("{sign}_{depth}");
            let rows = inbox.db.count(&format!("event WHERE key = '{key}'")).await;
            assert_eq!(rows, if readable { 2 } else { 0 }, "{key}");
        }
    }
    // Where the signature lies inside the body, there is none to be found.
    let answer = Call::new("adyen", deep(100_000, "[", "]"))
        .to(inbox.public)
        .await;
    assert_eq!(answer.status, 401);
    until_booked(&inbox.db, 8).await;
    assert_eq!(inbox.db.count("event WHERE state = 'unreadable'").await, 8);
}

#[tokio::test]
async fn f20_f35_no_signed_body_however_odd_is_a_5xx_or_lost() {
    let inbox = start().await;
    let odd: [&[u8]; 24] = [
        b"",
        b" ",
        b"\n\n",
        b"null",
        b"true",
        b"7",
        b"1e400",
        b"\"x\"",
        b"[]",
        b"{}",
        b"[{}]",
        b"{",
        b"}{",
        b"{\"id\":",
        b"\xff\xfe\x00",
        b"\xef\xbb\xbf{\"id\":\"evt_bom\"}",
        b"{\"id\":\"\xff\"}",
        b"{\"id\":null}",
        b"{\"id\":\"\"}",
        b"{\"id\":{}}",
        b"{\"id\":[1]}",
        b"{\"id\":true}",
        b"{\"id\":\"a\",\"id\":\"b\"}",
        b"{\"id\":\"\\ud800\"}",
    ];
    for (number, body) in odd.into_iter().enumerate() {
        let id = format!("odd_{number}");
        let before = stored(&inbox.db).await;
        for call in [
            calls::stripe(body),
            calls::standard(&id, body),
            calls::github(&id, "push", body),
            calls::shop(body),
        ] {
            let answer = call.to(inbox.public).await;
            assert_eq!(
                answer.status, 200,
                "{}: {body:?}: {}",
                call.path, answer.body
            );
            assert!(!answer.replayed(), "{}: {body:?}", call.path);
        }
        assert_eq!(
            stored(&inbox.db).await,
            before.map(|rows| rows + 4),
            "{body:?}"
        );
        let answer = Call::new("adyen", body).to(inbox.public).await;
        assert_eq!(answer.status, 401, "{body:?}");
    }
    // Ids in the body decide for two of them: none of these is one.
    let listed = "event e JOIN oncehook.source s ON s.id = e.source_id WHERE s.name IN ('stripe', 'shop') AND state = 'unreadable'";
    assert_eq!(inbox.db.count(listed).await, 48);
}
