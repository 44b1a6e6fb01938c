//! The world outside of the service: senders that come again until they are told 2xx, an operator,
//! and the records of both, against which the database is checked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use crate::support::node::{Launch, client};
use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{Node, connect};

use super::service::Service;

/// Before a sender or an operator comes again.
const BACK_OFF: Duration = Duration::from_millis(30);
/// Between two looks at the database.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// The hex key of source `adyen`.
pub(super) const ADYEN_SECRET: &str =
    "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056";

/// Asks the database directly; gets no answer while it is away.
pub(super) struct Look {
    url: String,
    client: tokio::sync::Mutex<Option<Client>>,
}

impl Look {
    pub(super) fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            client: tokio::sync::Mutex::new(None),
        }
    }

    pub(super) async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Option<Vec<Row>> {
        let mut client = self.client.lock().await;
        if client.as_ref().is_none_or(Client::is_closed) {
            *client = connect(&self.url).await.ok();
        }
        match client.as_ref()?.query(sql, params).await {
            Ok(rows) => Some(rows),
            Err(error)
                if error.as_db_error().is_none() || error.code()?.code().starts_with("57") =>
            {
                *client = None;
                None
            }
            Err(error) => panic!("{sql}: {error:?}"),
        }
    }

    /// Looks until the only column of the only row is true.
    pub(super) async fn until(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) {
        loop {
            if let Some(rows) = self.rows(sql, params).await
                && rows[0].get(0)
            {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Runs a statement until it was executed. It must be one that may be repeated.
    pub(super) async fn execute(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) {
        while self.rows(sql, params).await.is_none() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// What must have become of an event at a handler in the end.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    pub(super) key: String,
    pub(super) handler: String,
    /// Of each run, from the first.
    pub(super) results: Vec<&'static str>,
    /// What a handler books for it.
    pub(super) amount: i64,
    /// What it books for further intents under the key of an operation, each of which has these results.
    pub(super) further: Vec<i64>,
}

/// What was sent, asked and promised in one run of a scenario.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Sources and keys answered with 2xx.
    pub(super) acknowledged: Vec<(&'static str, String)>,
    pub(super) expected: Vec<Expected>,
    /// Keys that got a second content.
    pub(super) conflicts: Vec<String>,
    /// Of each key of an operation, what its last intent was answered.
    pub(super) answers: BTreeMap<String, (u16, Vec<u8>)>,
    /// Answers that were not what they must be.
    pub(super) wrong: Vec<String>,
}

/// The world outside.
pub(super) struct Outside {
    http: reqwest::Client,
    webhooks: String,
    api: String,
    pub(super) look: Look,
    service: Service,
    command: Launch,
    /// The running verb, for whoever kills it.
    pub(super) command_pid: Arc<Mutex<Option<u32>>>,
    /// Begins every key of this run.
    pub(super) tag: String,
    pub(super) log: Mutex<Log>,
}

impl Outside {
    pub(super) fn new(
        inbox: &Node,
        url: &str,
        service: &Service,
        command: &Launch,
        tag: String,
    ) -> Self {
        Self {
            http: client(),
            webhooks: format!("http://{}/webhooks", inbox.public),
            api: format!("http://{}", inbox.api),
            look: Look::at(url),
            service: service.clone(),
            command: command.clone(),
            command_pid: Arc::default(),
            tag,
            log: Mutex::default(),
        }
    }

    /// The key of an event of this run.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}_{name}", self.tag)
    }

    /// The results that runs of this event at this handler must have.
    pub(super) fn expect(&self, key: &str, handler: &str, results: &[&'static str], amount: i64) {
        let mut log = self.log.lock().unwrap();
        log.expected
            .retain(|known| known.key != key || known.handler != handler);
        log.expected.push(Expected {
            key: key.to_owned(),
            handler: handler.to_owned(),
            results: results.to_vec(),
            amount,
            further: Vec::new(),
        });
    }

    /// The keys of this run, as a pattern.
    pub(super) fn keys(&self) -> String {
        // The client's name stands before an operation's.
        format!("%{}\\_%", self.tag)
    }

    /// The same of the intents under a key of an operation, one after the other.
    pub(super) fn expect_intents(
        &self,
        key: &str,
        operation: &str,
        results: &[&'static str],
        amounts: &[i64],
    ) {
        self.log.lock().unwrap().expected.push(Expected {
            key: format!("local:{key}"),
            handler: operation.to_owned(),
            results: results.to_vec(),
            amount: amounts[0],
            further: amounts[1..].to_vec(),
        });
    }

    /// Submits an intent until it has its answer, which must be that of every time before.
    pub(super) async fn intent(&self, operation: &'static str, key: &str, what: &str, amount: i64) {
        let body = json!({ "id": key, "type": what, "amount": { "value": amount } }).to_string();
        let (status, bytes) = loop {
            match self.post_intent(operation, key, &body).await {
                // What failed without effect begins again when its client comes again.
                Some((202 | 500 | 503, _)) | None => {}
                Some(answer) => break answer,
            }
            tokio::time::sleep(BACK_OFF).await;
        };
        let key = format!("local:{key}");
        let mut log = self.log.lock().unwrap();
        if status != 201 {
            log.wrong.push(format!("{key}: answered {status}"));
        }
        let known = log.answers.insert(key.clone(), (status, bytes.clone()));
        if known.is_some_and(|known| known != (status, bytes)) {
            log.wrong.push(format!("{key}: answered otherwise again"));
        }
        if !log.acknowledged.iter().any(|(_, known)| *known == key) {
            log.acknowledged.push((operation, key));
        }
    }

    /// Submits other content under a known key until it is told so.
    pub(super) async fn other_content(&self, operation: &'static str, key: &str, amount: i64) {
        let body = json!({ "id": key, "type": "other", "amount": { "value": amount } }).to_string();
        loop {
            match self.post_intent(operation, key, &body).await {
                Some((409, _)) => break,
                Some((503, _)) | None => tokio::time::sleep(BACK_OFF).await,
                Some((status, _)) => panic!("{status}: other content under {key}"),
            }
        }
        let mut log = self.log.lock().unwrap();
        log.conflicts.push(format!("local:{key}"));
    }

    /// The key's time is over: what was answered so far was its first intent.
    pub(super) async fn key_is_over(&self, key: &str) {
        let key = format!("local:{key}");
        self.log.lock().unwrap().answers.remove(&key);
        let over =
            "UPDATE oncehook.event_key SET expires_at = now() - interval '1 s' WHERE key = $1";
        self.look.execute(over, &[&key]).await;
    }

    async fn post_intent(&self, operation: &str, key: &str, body: &str) -> Option<(u16, Vec<u8>)> {
        let request = self
            .http
            .post(format!("{}/v1/operations/{operation}", self.api))
            .header("Content-Type", "application/json")
            .header("Idempotency-Key", key)
            .body(body.to_owned());
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.bytes().await.ok()?.to_vec()))
    }

    /// Waits until everything expected so far has its outcome.
    pub(super) async fn settled(&self) {
        let (keys, handlers, runs): (Vec<String>, Vec<String>, Vec<i16>) = {
            let log = self.log.lock().unwrap();
            let row = |e: &Expected| {
                let runs = i16::try_from(e.results.len()).unwrap();
                (e.key.clone(), e.handler.clone(), runs)
            };
            let of_events = log.expected.iter().filter(|e| e.further.is_empty());
            of_events.map(row).collect()
        };
        let sql = "SELECT count(o.run) = cardinality($1::text[])
                     FROM unnest($1::text[], $2::text[], $3::int2[]) AS w(key, handler, run)
                     JOIN oncehook.event e ON e.key = w.key
                     JOIN oncehook.handler h ON h.name = w.handler
                     JOIN oncehook.outcome o ON o.event_id = e.id AND o.handler_id = h.id AND o.run = w.run";
        self.look.until(sql, &[&keys, &handlers, &runs]).await;
    }

    /// Sends a Stripe event until it is acknowledged.
    pub(super) async fn stripe(&self, key: &str, event_type: &str, amount: i64) {
        let event = json!({
            "id": key, "object": "event", "type": event_type, "livemode": true, "created": 1_764_655_200,
            "data": { "object": { "id": "ch_1", "amount": amount } },
        });
        let body = event.to_string();
        loop {
            let signature = signer::stripe(STRIPE_SECRET, signer::now_s(), body.as_bytes());
            if self.post("stripe", Some(&signature), &body).await {
                break;
            }
            tokio::time::sleep(BACK_OFF).await;
        }
        self.acknowledge("stripe", key.to_owned());
    }

    /// Sends a Stripe event once whose signature is wrong; it must not be acknowledged.
    pub(super) async fn forged(&self, key: &str) {
        let body = json!({ "id": key, "object": "event", "type": "charge.x" }).to_string();
        let signature = signer::stripe("whsec_somebody_elses", signer::now_s(), body.as_bytes());
        let taken = self.post("stripe", Some(&signature), &body).await;
        assert!(!taken, "a forged event was acknowledged");
    }

    /// Sends an Adyen notification of several items until it is acknowledged; returns their keys.
    pub(super) async fn adyen(&self, names: &[&str], code: &str, amount: i64) -> Vec<String> {
        let items: Vec<Value> = names
            .iter()
            .map(|name| adyen_item(&self.key(name), code, amount))
            .collect();
        let body = json!({ "live": "true", "notificationItems": items }).to_string();
        while !self.post("adyen", None, &body).await {
            tokio::time::sleep(BACK_OFF).await;
        }
        let keys: Vec<String> = names
            .iter()
            .map(|name| format!("{}:{code}:true", self.key(name)))
            .collect();
        for key in &keys {
            self.acknowledge("adyen", key.clone());
        }
        keys
    }

    async fn post(&self, source: &str, signature: Option<&str>, body: &str) -> bool {
        let mut request = self.http.post(format!("{}/{source}", self.webhooks));
        request = request.header("Content-Type", "application/json");
        if let Some(signature) = signature {
            request = request.header("Stripe-Signature", signature);
        }
        let answer = request.body(body.to_owned()).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    fn acknowledge(&self, source: &'static str, key: String) {
        self.log.lock().unwrap().acknowledged.push((source, key));
    }

    /// Asks the API for a second run until it is there, as a person does who may have lost the
    /// answer: only if the first run is still the last one.
    pub(super) async fn replay(&self, key: &str, handler: &str, force: bool) {
        let url = format!("{}/v1/events/stripe/{key}/replay", self.api);
        let body =
            json!({ "handler": handler, "reason": "sweep", "force": force, "expected_run": 1 });
        loop {
            let request = self
                .http
                .post(&url)
                .header("Content-Type", "application/json");
            let answer = request.body(body.to_string()).send().await;
            match answer.map(|answer| answer.status().as_u16()) {
                Ok(200) => return,
                // Live, or finished beyond the first run: an earlier request has done it.
                Ok(409) => {
                    let sql = "SELECT count(*) > 0 FROM oncehook.audit a JOIN oncehook.event e ON e.id::text = a.subject
                                WHERE e.key = $1 AND a.action LIKE 'event.replay%'";
                    self.look.until(sql, &[&key]).await;
                    return;
                }
                Ok(404 | 400) => panic!("a replay of {key} was refused for good"),
                _ => tokio::time::sleep(BACK_OFF).await,
            }
        }
    }

    /// Waits until the result of its call is not known, or known again, and has the call land: its
    /// connection is gone, so that it is not under way.
    pub(super) async fn landed(&self, key: &str) {
        let open = "SELECT count(*) > 0 FROM oncehook.event e WHERE e.key = $1 AND (
              EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = e.id AND d.state = 'uncertain' AND (d.probes > 0 OR d.run_at = 'infinity'))
              OR EXISTS (SELECT FROM oncehook.outcome o WHERE o.event_id = e.id))";
        self.look.until(open, &[&key]).await;
        let land = "WITH open AS (
              UPDATE oncehook.delivery d SET in_flight_until = now() - interval '1 ms',
                     run_at = CASE WHEN run_at < 'infinity' THEN least(run_at, now()) ELSE run_at END
                FROM oncehook.event e WHERE e.id = d.event_id AND e.key = $1 AND d.state = 'uncertain' RETURNING d.event_id)
            UPDATE oncehook.attempt a SET in_flight_until = now() - interval '1 ms'
              FROM open WHERE a.event_id = open.event_id AND a.in_flight_until > now()";
        self.look.execute(land, &[&key]).await;
    }

    /// As a person who asks the service, and says what they were told, until it has ended.
    pub(super) async fn decided(&self, key: &str, handler: &str) {
        let url = format!("{}/v1/events/stripe/{key}/resolve", self.api);
        let sql = "SELECT (SELECT count(*) FROM oncehook.outcome o WHERE o.event_id = e.id), d.state = 'uncertain'
                     FROM oncehook.event e LEFT JOIN oncehook.delivery d ON d.event_id = e.id WHERE e.key = $1";
        loop {
            let rows = self.look.rows(sql, &[&key]).await.unwrap_or_default();
            let open = rows
                .first()
                .map(|row| (row.get::<_, i64>(0), row.get::<_, Option<bool>>(1)));
            match open {
                Some((1.., _)) => return,
                Some((0, Some(true))) => {
                    let word = if self.service.has_applied(key) {
                        "succeeded"
                    } else {
                        "retry"
                    };
                    let body = json!({ "handler": handler, "as": word, "reason": "sweep" });
                    let request = self
                        .http
                        .post(&url)
                        .header("Content-Type", "application/json");
                    let answer = request.body(body.to_string()).send().await;
                    let status = answer.map_or(503, |answer| answer.status().as_u16());
                    // 409: under way, or an earlier request has done it.
                    assert!([200, 409, 503].contains(&status), "{status}: resolve {key}");
                }
                _ => {}
            }
            tokio::time::sleep(BACK_OFF).await;
        }
    }

    /// Runs a verb of the command line until it succeeds or says one of these things.
    pub(super) async fn command(&self, args: &[&str], done: &[&str]) {
        let config: PathBuf = self.command.dir.join(format!("{}.toml", self.command.name));
        loop {
            let child = Command::new(&self.command.command[0])
                .arg("--config")
                .arg(&config)
                .args(args)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .unwrap();
            *self.command_pid.lock().unwrap() = child.id();
            let output = child.wait_with_output().await.unwrap();
            *self.command_pid.lock().unwrap() = None;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() || done.iter().any(|text| said.contains(text)) {
                return;
            }
            tokio::time::sleep(BACK_OFF).await;
        }
    }
}

fn adyen_item(psp: &str, code: &str, amount: i64) -> Value {
    let value = amount.to_string();
    let fields = [
        psp,
        "",
        "TestMerchant",
        "order",
        &value,
        "EUR",
        code,
        "true",
    ];
    json!({ "NotificationRequestItem": {
        "additionalData": { "hmacSignature": signer::adyen(ADYEN_SECRET, fields) },
        "amount": { "value": amount, "currency": "EUR" },
        "pspReference": psp, "merchantReference": "order",
        "merchantAccountCode": "TestMerchant", "eventCode": code,
        "eventDate": "2026-12-02T10:00:00+01:00", "success": "true",
    } })
}
