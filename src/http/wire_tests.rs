//! What the listener does with bytes on a real socket, below any source: our body loop under the
//! settings that `serve` uses, and the behaviour of actix that it counts on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::{HttpRequest, HttpResponse, web};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::body::{self, Budget, Cause};
use super::problem::Problem;
use super::server::{Connections, Listener};
use super::{early, incoming};
use wire::{Wire, answers, chunked, status};

#[path = "../../tests/it/http/wire.rs"]
mod wire;

const LIMIT: usize = 200_000;
const BODY_TIME: Duration = Duration::from_millis(700);

/// `/body` reads like the webhook route and says what it read; `/slow` also waits afterwards, `/stuck` for ever.
fn listen() -> Listener {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let budget = web::Data::new(Arc::new(Budget::new(64 << 20)));
    let connections = Connections {
        most: 2_048,
        half_closed: true,
    };
    Listener::start(address, 2, connections, move |app| {
        app.app_data(budget.clone())
            .service(web::resource("/body").to(read))
            .service(web::resource("/slow").to(read_slowly))
            .service(web::resource("/stuck").to(std::future::pending::<HttpResponse>));
    })
    .unwrap()
}

async fn read(
    request: HttpRequest,
    mut payload: web::Payload,
    budget: web::Data<Arc<Budget>>,
) -> HttpResponse {
    let declared = incoming::declared_length(&request);
    match body::collect(&mut payload, declared, LIMIT, BODY_TIME, &budget).await {
        Ok(body) => {
            let bytes = body.release();
            HttpResponse::Ok().body(format!("read {} {:x?}", bytes.len(), bytes.first()))
        }
        Err(stopped) => {
            let answer = match stopped.cause {
                Cause::Refused(refusal) => {
                    let status = refusal.status().try_into().unwrap();
                    Problem::of_refusal(refusal, status).response()
                }
                Cause::NoRoom => Problem::UNAVAILABLE.response(),
            };
            early::without_reading(answer, payload)
        }
    }
}

async fn read_slowly(
    request: HttpRequest,
    payload: web::Payload,
    budget: web::Data<Arc<Budget>>,
) -> HttpResponse {
    let answer = read(request, payload, budget).await;
    sleep(Duration::from_millis(400)).await;
    answer
}

#[actix_web::test]
async fn f33_the_limit_holds_to_the_byte_with_a_length_and_chunked() {
    let listener = listen();
    for (size, expected) in [(LIMIT, 200), (LIMIT + 1, 413)] {
        let body = vec![b'a'; size];
        let mut wire = Wire::open(listener.address).await;
        wire.head("/body", &format!("Content-Length: {size}\r\n"))
            .await;
        wire.send(&body).await;
        assert_eq!(status(&wire.answer().await), expected, "length {size}");

        let mut wire = Wire::open(listener.address).await;
        wire.head("/body", "Transfer-Encoding: chunked\r\n").await;
        wire.send(chunked(&body, 7_000)).await;
        assert_eq!(status(&wire.answer().await), expected, "chunked {size}");
    }
}

#[actix_web::test]
async fn f33_a_length_above_the_limit_is_refused_before_a_byte_of_it_was_sent() {
    let listener = listen();
    let mut wire = Wire::open(listener.address).await;
    wire.head("/body", "Content-Length: 99999999999\r\n").await;
    let answer = wire.answer().await;
    assert_eq!(status(&answer), 413);
    assert!(
        answer.to_ascii_lowercase().contains("connection: close"),
        "{answer}"
    );
}

#[actix_web::test]
async fn f33_endless_chunks_are_refused_and_the_connection_ends() {
    let listener = listen();
    for path in ["/body", "/nowhere"] {
        let mut wire = Wire::open(listener.address).await;
        wire.head(path, "Transfer-Encoding: chunked\r\n").await;
        let (mut reading, mut writing) = wire.0.into_split();
        let endless = tokio::spawn(async move {
            let chunk = [&b"1000\r\n"[..], &[b'a'; 4_096], b"\r\n"].concat();
            while writing.write_all(&chunk).await.is_ok() {}
        });
        let begun = Instant::now();
        let mut text = vec![0; 12];
        reading.read_exact(&mut text).await.unwrap();
        let expected = if path == "/body" { 413 } else { 404 };
        assert_eq!(status(&String::from_utf8(text).unwrap()), expected);
        timeout(Duration::from_secs(10), endless)
            .await
            .expect("still reading after the answer")
            .unwrap();
        assert!(begun.elapsed() < Duration::from_secs(8));
    }
}

#[actix_web::test]
async fn a_body_that_drips_is_answered_408() {
    let listener = listen();
    for fields in ["Content-Length: 100\r\n", "Transfer-Encoding: chunked\r\n"] {
        let mut wire = Wire::open(listener.address).await;
        wire.head("/body", fields).await;
        for _ in 0..4 {
            wire.send("1\r\na\r\n").await;
            sleep(Duration::from_millis(50)).await;
        }
        let answer = wire.rest().await;
        assert_eq!(status(&answer), 408);
        assert_eq!(answers(&answer), 1);
    }
}

#[actix_web::test]
async fn f32_a_sender_that_closed_its_side_still_gets_the_answer() {
    let listener = listen();
    for size in [0, 10, 40_000, 131_072, LIMIT] {
        let body = vec![b'a'; size];
        for (fields, sent) in [
            (format!("Content-Length: {size}\r\n"), body.clone()),
            (
                "Transfer-Encoding: chunked\r\n".to_owned(),
                chunked(&body, 50_000),
            ),
        ] {
            let mut wire = Wire::open(listener.address).await;
            wire.head("/slow", &fields).await;
            wire.send(sent).await;
            wire.done_writing().await;
            let answer = wire.rest().await;
            assert_eq!(status(&answer), 200, "{size} {fields}");
            assert!(answer.contains(&format!("read {size} ")), "{answer}");
        }
    }
}

#[actix_web::test]
async fn a_body_cut_short_is_answered_400() {
    let listener = listen();
    for (fields, sent) in [
        ("Content-Length: 100\r\n", "half"),
        ("Transfer-Encoding: chunked\r\n", "4\r\nhalf\r\n"),
        (
            "Transfer-Encoding: chunked\r\n",
            "4\r\nhalf\r\nno chunk\r\n",
        ),
    ] {
        let mut wire = Wire::open(listener.address).await;
        wire.head("/body", fields).await;
        wire.send(sent).await;
        wire.done_writing().await;
        assert_eq!(status(&wire.rest().await), 400, "{fields}{sent}");
    }
}

#[actix_web::test]
async fn f34_ambiguous_lengths_are_400_and_no_second_request_is_found_in_the_body() {
    let listener = listen();
    let inner = "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let length = inner.len();
    for head in [
        format!(
            "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: {length}\r\n\r\n"
        ),
        format!(
            "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nContent-Length: {length}\r\n\r\n"
        ),
        format!(
            "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n"
        ),
        format!(
            "POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n"
        ),
        "POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n".to_owned(),
        "POST /body HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\n".to_owned(),
        "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length : 4\r\n\r\n".to_owned(),
        "POST /body HTTP/1.1\r\nContent-Length: 4\r\n\r\n".to_owned(),
    ] {
        let mut wire = Wire::open(listener.address).await;
        wire.send(&head).await;
        wire.send(inner).await;
        let answer = wire.rest().await;
        assert_eq!(status(&answer), 400, "{head}");
        assert_eq!(answers(&answer), 1, "{head}");
    }
}

#[actix_web::test]
async fn f34_a_request_inside_a_body_is_body() {
    let listener = listen();
    let inner = "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let mut wire = Wire::open(listener.address).await;
    let length = inner.len();
    wire.head(
        "/body",
        &format!("Connection: close\r\nContent-Length: {length}\r\n"),
    )
    .await;
    wire.send(inner).await;
    let answer = wire.rest().await;
    assert_eq!(answers(&answer), 1, "{answer}");
    assert!(answer.contains(&format!("read {length} ")), "{answer}");
}

#[actix_web::test]
async fn f10_a_compressed_body_is_read_as_it_came() {
    let listener = listen();
    let mut wire = Wire::open(listener.address).await;
    wire.head("/body", "Content-Encoding: gzip\r\nContent-Length: 20\r\n")
        .await;
    wire.send([
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ])
    .await;
    let answer = wire.answer().await;
    assert!(answer.contains("read 20 Some(1f)"), "{answer}");
}

#[actix_web::test]
async fn f7_a_connection_serves_again_after_a_body_was_read_to_its_end() {
    let listener = listen();
    let mut wire = Wire::open(listener.address).await;
    for _ in 0..3 {
        wire.head("/body", "Content-Length: 4\r\n").await;
        wire.send("abcd").await;
        assert_eq!(status(&wire.answer().await), 200);
        wire.send("GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert_eq!(status(&wire.answer().await), 404);
    }
}

#[actix_web::test]
async fn more_than_96_fields_are_431() {
    let listener = listen();
    for (count, expected) in [(95, 200), (96, 431)] {
        // One field more is `Host`.
        let fields = "x-many: 1\r\n".repeat(count);
        let mut wire = Wire::open(listener.address).await;
        wire.head("/body", &fields).await;
        assert_eq!(status(&wire.answer().await), expected, "{count}");
    }
}

#[actix_web::test]
async fn a_head_without_end_is_cut_off() {
    let listener = listen();
    let mut wire = Wire::open(listener.address).await;
    wire.send("POST /body HTTP/1.1\r\nHost: x\r\nx-large: ")
        .await;
    // actix answers 431 at 128 KiB and closes at once, so a sender in full flow may only see the
    // reset that follows.
    let mut endless = async || while wire.0.write_all(&[b'a'; 4_096]).await.is_ok() {};
    timeout(Duration::from_secs(10), endless())
        .await
        .expect("still reading");
    let mut next = Wire::open(listener.address).await;
    next.head("/body", "Content-Length: 0\r\n").await;
    assert_eq!(status(&next.answer().await), 200);
}

#[actix_web::test]
async fn stopping_waits_for_a_request_in_flight() {
    let listener = listen();
    let mut finishing = Wire::open(listener.address).await;
    finishing.head("/slow", "Content-Length: 4\r\n").await;
    finishing.send("abcd").await;
    let mut idle = Wire::open(listener.address).await;
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    let stopping = listener.stop(Duration::from_secs(20));
    let (answer, nothing, ()) = tokio::join!(finishing.rest(), idle.rest(), stopping);
    assert_eq!(status(&answer), 200);
    assert_eq!(nothing, "");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[actix_web::test]
async fn stopping_waits_no_longer_than_the_grace() {
    let listener = listen();
    let address = listener.address;
    let mut stuck = Wire::open(address).await;
    stuck.head("/stuck", "Content-Length: 0\r\n").await;
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    listener.stop(Duration::from_millis(300)).await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(stuck.rest().await, "");
    let again = tokio::net::TcpStream::connect(address).await;
    assert!(again.is_err(), "still listening");
}
