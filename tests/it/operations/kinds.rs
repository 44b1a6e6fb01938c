//! Handlers of every kind: the same bytes again, from whichever node.

use std::sync::Arc;

use oncehook::dispatch::{HttpTarget, HttpUnknown};
use oncehook::domain::SecretText;
use oncehook::domain::operation::{OperationSpec, Response};
use oncehook::engine::{Engine, EngineConfig};
use oncehook::{
    Answer, Delivered, External, Function, HandlerError, HandlerKind, HandlerSpec, Probed,
    Settings, Store, Work, async_trait,
};

use crate::support::inbox::{Inbox, dispatch};
use crate::support::{Receiver, Reply, TestDb};

use super::wire::Client;

/// No text in any encoding.
const BYTES: [u8; 9] = [0, 255, 10, 123, 13, 10, 34, 0, 200];

const SETUP: &str = "
CREATE SCHEMA app;
CREATE TABLE app.payment (key text NOT NULL);
CREATE FUNCTION app.pay(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $f$
BEGIN
  INSERT INTO app.payment VALUES (event.key);
  RETURN jsonb_build_object('result', 'done', 'status', 202, 'resource', 'pay_1',
    'headers', '{\"Location\": \"/p/1\", \"ETag\": \"W/\\\"7\\\"\", \"X-Order\": \"17\", \"Set-Cookie\": \"a=b\", \"X-Other\": \"1\"}'::jsonb,
    'body_base64', encode('\\x00ff0a7b0d0a2200c8', 'base64'));
END $f$;
";

fn response() -> Response {
    let headers = [
        ("Location", "/p/1"),
        ("ETag", "W/\"7\""),
        ("X-Order", "17"),
        ("Set-Cookie", "a=b"),
        ("X-Other", "1"),
    ];
    Response {
        status: 202,
        headers: headers
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        body: BYTES.to_vec().into(),
    }
}

struct Code;

#[async_trait]
impl Function for Code {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        work.execute(
            "INSERT INTO app.payment VALUES ($1)",
            &[&event.key.as_str()],
        )
        .await?;
        Ok(Answer::DoneWith("pay_1".to_owned()).with_response(response()))
    }
}

#[async_trait]
impl External for Code {
    async fn call(&self, _: &str, _: &Delivered) -> Result<Answer, HandlerError> {
        Ok(Answer::DoneWith("pay_1".to_owned()).with_response(response()))
    }

    async fn settle(
        &self,
        event: &Delivered,
        _: &Answer,
        work: &Work<'_>,
    ) -> Result<(), HandlerError> {
        work.execute(
            "INSERT INTO app.payment VALUES ($1)",
            &[&event.key.as_str()],
        )
        .await?;
        Ok(())
    }

    async fn probe(&self, _: &str, _: &Delivered) -> Result<Probed, HandlerError> {
        Ok(Probed::Absent)
    }
}

fn operations(receiver: &Receiver) -> Vec<HandlerSpec> {
    let code = || Arc::new(Code);
    let http = HttpTarget {
        url: receiver.url("/pay"),
        secrets: vec![(
            "a".to_owned(),
            SecretText::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        )],
        on_unknown: HttpUnknown::Hold,
    };
    let kinds = [
        (
            "sql",
            HandlerKind::Sql {
                call: "app.pay".into(),
            },
        ),
        ("function", HandlerKind::Function(code())),
        ("external", HandlerKind::External(code())),
        ("http", HandlerKind::Http(http)),
    ];
    let spec = || OperationSpec {
        headers: vec!["x-order".to_owned()],
        ..OperationSpec::default()
    };
    kinds
        .map(|(name, kind)| HandlerSpec::operation(name, kind, spec()))
        .to_vec()
}

/// Everything of an answer but what is of one message.
async fn whole(request: reqwest::RequestBuilder) -> (u16, Vec<(String, String)>, Vec<u8>, bool) {
    const OF_ONE: [&str; 4] = [
        "date",
        "oncehook-request-id",
        "idempotency-replayed",
        "content-length",
    ];
    let answer = request.send().await.unwrap();
    let replayed = answer.headers().contains_key("Idempotency-Replayed");
    let headers = answer.headers().iter().filter_map(|(name, value)| {
        let value = value.to_str().unwrap().to_owned();
        (!OF_ONE.contains(&name.as_str())).then(|| (name.as_str().to_owned(), value))
    });
    let mut headers: Vec<_> = headers.collect();
    headers.sort();
    let status = answer.status().as_u16();
    (
        status,
        headers,
        answer.bytes().await.unwrap().to_vec(),
        replayed,
    )
}

#[tokio::test]
async fn f60_f55_every_kind_answers_the_same_bytes_and_headers_again_on_any_node() {
    let receiver = Receiver::start().await;
    let body = "{ \"caf\u{e9}\":\t1.0 }\r\n";
    let mut reply = Reply::status(202).body(body);
    for (name, value) in [
        ("Content-Type", "application/vnd.shop+json"),
        ("Location", "/p/1"),
        ("ETag", "W/\"7\""),
        ("X-Order", "17"),
        ("Set-Cookie", "a=b"),
        ("X-Other", "1"),
    ] {
        reply = reply.header(name, value);
    }
    receiver.always(reply);
    let db = Arc::new(TestDb::new().await);
    db.execute(SETUP).await;
    let on = async |dispatch| {
        Inbox::on(Arc::clone(&db), Vec::new(), operations(&receiver), dispatch).await
    };
    let (node, other) = (on(Some(dispatch())).await, on(None).await);
    for operation in ["sql", "function", "external", "http"] {
        let intent =
            |inbox: &Inbox| Client::at(inbox.api).intent(operation, "k", r#"{"amount": 5}"#);
        let (status, headers, bytes, replayed) = whole(intent(&node)).await;
        assert_eq!((status, replayed), (202, false), "{operation}: {headers:?}");
        let expected = match operation {
            "http" => body.as_bytes(),
            _ => &BYTES,
        };
        assert_eq!(bytes, expected, "{operation}");
        let has = |name: &str| headers.iter().any(|(known, _)| known == name);
        for name in ["location", "etag", "x-order"] {
            assert!(has(name), "{operation}: {name} of {headers:?}");
        }
        assert!(
            !has("set-cookie") && !has("x-other"),
            "{operation}: {headers:?}"
        );
        for inbox in [&node, &other, &node] {
            let again = whole(intent(inbox)).await;
            assert_eq!(
                again,
                (status, headers.clone(), bytes.clone(), true),
                "{operation}"
            );
        }
    }
    assert_eq!(receiver.requests().len(), 1);
    assert_eq!(db.count("app.payment").await, 3);
    db.verify().await;
}

#[tokio::test]
async fn f61_a_long_answer_comes_again_whole_and_one_that_is_too_long_says_so_each_time() {
    const MIB: usize = 1 << 20;
    let receiver = Receiver::start().await;
    let db = Arc::new(TestDb::new().await);
    db.execute(SETUP).await;
    let node = Inbox::on(
        Arc::clone(&db),
        Vec::new(),
        operations(&receiver),
        Some(dispatch()),
    )
    .await;
    for (key, length) in [
        ("long", 5 * MIB),
        ("most", 8 * MIB),
        ("beyond", 8 * MIB + 1),
    ] {
        let reply = Reply::status(201).header("Location", "/p/1");
        receiver.reply(reply.body(&"x".repeat(length)));
        let intent = || {
            let intent = Client::at(node.api).intent("http", key, r#"{"amount": 5}"#);
            intent.header("Prefer", "wait=60")
        };
        let first = whole(intent()).await;
        assert_eq!((first.0, first.3), (201, false), "{key}");
        assert!(
            first
                .1
                .contains(&("location".to_owned(), "/p/1".to_owned()))
        );
        if key == "beyond" {
            let said = String::from_utf8(first.2.clone()).unwrap();
            assert!(
                said.contains("urn:oncehook:problem:response-not-kept"),
                "{said}"
            );
        } else {
            assert_eq!(first.2.len(), length, "{key}");
        }
        let again = whole(intent()).await;
        assert!(again == (first.0, first.1, first.2, true), "{key}");
    }
    assert_eq!(receiver.requests().len(), 3);
    db.verify().await;
}

#[tokio::test]
async fn an_operation_in_another_database_is_refused_at_start() {
    let (db, elsewhere) = (TestDb::new().await, TestDb::new().await);
    let kind = HandlerKind::sql_elsewhere("app.pay", &elsewhere.url).unwrap();
    let config = EngineConfig {
        handlers: vec![HandlerSpec::operation(
            "pay",
            kind,
            OperationSpec::default(),
        )],
        ..EngineConfig::default()
    };
    let store = Store::new(Settings::parse(&db.url).unwrap(), 1).unwrap();
    let refused = Engine::start(store, config).await.unwrap_err().to_string();
    assert!(
        refused.contains("cannot have a `database` of its own"),
        "{refused}"
    );
    assert_eq!(db.count("handler").await, 0);
}
