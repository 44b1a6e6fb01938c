//! What the tests of the wire stand on: a payment function, its ledger, and a client.

use std::net::SocketAddr;

use reqwest::header::{CONTENT_TYPE, HeaderMap};

use crate::support::{AppBuilder, Receiver, TestApp, node};

/// The ledger, and a function that books a payment: amount 0 is refused by the business, a negative one
/// fails for good.
const LEDGER: &str = r#"
CREATE SCHEMA app;
CREATE TABLE app.payment (no int GENERATED ALWAYS AS IDENTITY, key text NOT NULL, body jsonb NOT NULL);
CREATE FUNCTION app.pay(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $f$
DECLARE
  intent jsonb := oncehook.body_json(event);
  made int;
BEGIN
  IF (intent ->> 'amount')::numeric = 0 THEN
    RETURN '{"result": "failed", "status": 422, "body": {"error": "nothing to pay"}}';
  END IF;
  IF (intent ->> 'amount')::numeric < 0 THEN
    RAISE EXCEPTION 'no' USING ERRCODE = 'OH001';
  END IF;
  INSERT INTO app.payment (key, body) VALUES (event.key, intent) RETURNING no INTO made;
  RETURN jsonb_build_object('result', 'done', 'status', 201, 'resource', 'pay_' || made,
    'headers', jsonb_build_object('Location', '/payments/' || made),
    'body', jsonb_build_object('payment', made));
END $f$;
"#;

/// An operation that books in the database; further lines of it.
pub(super) fn booking(name: &str, lines: &str) -> String {
    format!("[[operation]]\nname = {name:?}\nkind = \"sql\"\ncall = \"app.pay\"\n{lines}\n")
}

/// An operation that calls a receiver.
pub(super) fn calling(name: &str, receiver: &Receiver, lines: &str) -> String {
    let url = receiver.url("/pay");
    format!(
        "[[operation]]\nname = {name:?}\nkind = \"http\"\nurl = {url:?}\n\
         secrets = [{{ label = \"a\", value = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\" }}]\n{lines}\n"
    )
}

/// A node with the ledger.
pub(super) fn app(toml: &str) -> AppBuilder {
    TestApp::builder().setup(LEDGER).toml(toml)
}

/// What came back.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(super) fn replayed(&self) -> bool {
        self.header("Idempotency-Replayed") == Some("true")
    }

    /// Whether it is a problem of this type.
    pub(super) fn is_problem(&self, code: &str) -> bool {
        self.header("Content-Type") == Some("application/problem+json")
            && self.json()["type"] == format!("urn:oncehook:problem:{code}")
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// What a replay repeats.
    pub(super) fn kept(&self) -> (u16, Option<&str>, Option<&str>, &str) {
        let header = |name| self.header(name);
        (
            self.status,
            header("Content-Type"),
            header("Location"),
            &self.body,
        )
    }
}

/// A client of the API.
#[derive(Debug, Clone)]
pub(super) struct Client {
    api: SocketAddr,
    http: reqwest::Client,
    token: Option<String>,
}

impl Client {
    pub(super) fn of(app: &TestApp) -> Self {
        Self::at(app.api)
    }

    pub(super) fn at(api: SocketAddr) -> Self {
        Self {
            api,
            http: node::client(),
            token: None,
        }
    }

    pub(super) fn with_token(&self, token: &str) -> Self {
        Self {
            token: Some(token.to_owned()),
            ..self.clone()
        }
    }

    pub(super) fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self
            .http
            .request(method, format!("http://{}{path}", self.api));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// A request for an operation, not yet sent.
    pub(super) fn intent(
        &self,
        operation: &str,
        key: &str,
        body: impl Into<String>,
    ) -> reqwest::RequestBuilder {
        self.request(
            reqwest::Method::POST,
            &format!("/v1/operations/{operation}"),
        )
        .header(CONTENT_TYPE, "application/json")
        .header("Idempotency-Key", key)
        .body(body.into())
    }

    pub(super) async fn submit(
        &self,
        operation: &str,
        key: &str,
        body: impl Into<String>,
    ) -> Answer {
        send(self.intent(operation, key, body)).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        send(self.request(reqwest::Method::GET, path)).await
    }
}

pub(super) async fn send(request: reqwest::RequestBuilder) -> Answer {
    let answer = request.send().await.unwrap();
    Answer {
        status: answer.status().as_u16(),
        headers: answer.headers().clone(),
        body: answer.text().await.unwrap(),
    }
}
