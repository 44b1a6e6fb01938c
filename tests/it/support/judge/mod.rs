//! The outside judge.
//!
//! Senders and receivers write logs of their own ([`log`]): what was sent, what was acknowledged,
//! what was applied. The judge compares these with each other, with the business tables of the
//! handlers ([`BOOKS`]: plain inserts without a conflict clause, and balances) and with what is
//! stored. That an effect happened twice is seen there and never asked of oncehook's own tables.
//!
//! - [`Provider`] sends and keeps its log.
//! - [`Service`] stands behind an `http` handler and keeps its own.
//! - [`Trial`] is all of that around three handlers.
//! - [`Judge`] says what does not fit, once everything is handled.

pub(crate) mod finding;
pub(crate) mod log;
pub(crate) mod provider;
pub(crate) mod service;
pub(crate) mod tables;
pub(crate) mod trial;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use tokio_postgres::Client;

pub(crate) use finding::Finding;
pub(crate) use log::{Entry, Kind, Log};
pub(crate) use provider::{Message, Provider, SECRET, SOURCE};
pub(crate) use service::{Behaviour, Service, Word};
pub(crate) use trial::Trial;

use tables::Tables;

/// Accounts that amounts are booked to, each event to the one its amount leads to.
const ACCOUNTS: i64 = 997;

/// The business side of `sql` handlers. `app.book` books for handler `ledger`, `app.book_at_last`
/// for `flaky`: it fails none, one or two tries of an event after it has booked, in two ways.
pub(crate) const BOOKS: &str = "
CREATE SCHEMA app;
CREATE TABLE app.booking (handler text NOT NULL, key text NOT NULL, amount bigint NOT NULL, effect_key text NOT NULL);
CREATE TABLE app.account (id bigint PRIMARY KEY, balance numeric NOT NULL DEFAULT 0) WITH (fillfactor = 50);
INSERT INTO app.account SELECT n FROM generate_series(0, 996) n;
CREATE FUNCTION app.book_for(handler text, event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  paid bigint := (oncehook.body_json(event) ->> 'amount')::bigint;
BEGIN
  INSERT INTO app.booking VALUES (handler, event.key, paid, event.effect_key);
  UPDATE app.account SET balance = balance + paid WHERE id = abs(paid) % 997;
END $$;
CREATE FUNCTION app.book(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$ SELECT app.book_for('ledger', event) $$;
CREATE FUNCTION app.book_at_last(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.book_for('flaky', event);
  CASE greatest(abs(hashtext(event.key)) % 3 - event.attempt, -1)
    WHEN 1 THEN RAISE EXCEPTION 'not at the first try';
    WHEN 0 THEN RETURN '{\"result\": \"retry\", \"reason\": \"not yet\"}';
    ELSE RETURN NULL;
  END CASE;
END $$";

/// Where a handler's effects are seen.
#[derive(Debug, Clone)]
pub(crate) enum Effects {
    /// Rows of `app.booking` under the handler's name, and the balances.
    Booked,
    /// The log of the service that it calls. One that does not honour the key may apply an effect
    /// more than once, under one key.
    Applied { log: PathBuf, honours_key: bool },
}

/// A handler as the judge knows it.
#[derive(Debug, Clone)]
pub(crate) struct Handler {
    /// Its name.
    pub(crate) name: &'static str,
    /// The event type it takes; `*` takes all.
    pub(crate) takes: &'static str,
    pub(crate) effects: Effects,
}

impl Handler {
    fn takes(&self, event_type: &str) -> bool {
        self.takes == "*" || self.takes == event_type
    }
}

/// What the senders' log says about one key.
#[derive(Debug, Default)]
struct Sent {
    event_type: String,
    /// Of the original; `None` when only forged requests came.
    amount: Option<i64>,
    acknowledged: bool,
    /// Acknowledgements that did not say "known already".
    fresh: u32,
    conflict: Option<i64>,
    conflict_acknowledged: bool,
    forged_acknowledged: bool,
}

/// One effect: how often, under which effect keys, with which amounts.
#[derive(Debug, Default)]
struct Effect {
    times: u32,
    keys: BTreeSet<String>,
    amounts: BTreeSet<i64>,
}

/// Effects of one handler by event key.
type ByKey = HashMap<String, Effect>;

/// Compares logs, business tables and stored events.
#[derive(Debug, Clone)]
pub(crate) struct Judge {
    /// The senders' log.
    pub(crate) sent: PathBuf,
    pub(crate) handlers: Vec<Handler>,
}

impl Judge {
    /// Everything that does not fit, in order. Asked when all work is done.
    pub(crate) async fn findings(&self, client: &Client) -> BTreeSet<Finding> {
        let sent = self.read_sent();
        let tables = Tables::read(client).await;
        let mut findings = BTreeSet::new();
        stored(&sent, &tables, &mut findings);
        for handler in &self.handlers {
            let read;
            let (effects, honours_key) = match &handler.effects {
                Effects::Booked => {
                    read = ByKey::new();
                    (tables.booked.get(handler.name).unwrap_or(&read), true)
                }
                Effects::Applied { log, honours_key } => {
                    read = read_applied(log);
                    (&read, *honours_key)
                }
            };
            handled(handler, effects, honours_key, &sent, &tables, &mut findings);
        }
        self.balances(&sent, &tables, &mut findings);
        for (key, handler) in &tables.unfinished {
            findings.insert(Finding::Unfinished {
                key: key.clone(),
                handler: handler.clone(),
            });
        }
        findings
    }

    /// Fails with what was found, if anything was. `reproduce` is a command line.
    pub(crate) async fn acquit(&self, client: &Client, reproduce: &str) {
        let findings = self.findings(client).await;
        if findings.is_empty() {
            return;
        }
        let shown: Vec<String> = findings.iter().take(20).map(ToString::to_string).collect();
        panic!(
            "the judge has {} findings:\n{}\nagain with: {reproduce}",
            findings.len(),
            shown.join("\n")
        );
    }

    /// Keys of events that were acknowledged.
    pub(crate) fn acknowledged(&self) -> usize {
        let sent = self.read_sent();
        sent.values().filter(|sent| sent.acknowledged).count()
    }

    fn read_sent(&self) -> HashMap<String, Sent> {
        let mut all: HashMap<String, Sent> = HashMap::new();
        for entry in log::read(&self.sent) {
            match entry {
                Entry::Sent {
                    key,
                    kind,
                    event_type,
                    amount,
                    ..
                } => {
                    let sent = all.entry(key).or_default();
                    match kind {
                        Kind::Original | Kind::Copy => sent.amount = Some(amount),
                        Kind::Conflict => sent.conflict = Some(amount),
                        Kind::Forged => {}
                    }
                    sent.event_type = event_type;
                }
                Entry::Answered {
                    key,
                    kind,
                    status,
                    replayed,
                    ..
                } if (200..300).contains(&status) => {
                    let sent = all.entry(key).or_default();
                    match kind {
                        Kind::Original | Kind::Copy => {
                            sent.acknowledged = true;
                            sent.fresh += u32::from(!replayed);
                        }
                        Kind::Conflict => sent.conflict_acknowledged = true,
                        Kind::Forged => sent.forged_acknowledged = true,
                    }
                }
                _ => {}
            }
        }
        all
    }

    /// Every account holds the sum of the amounts that senders sent, once per handler that books.
    fn balances(
        &self,
        sent: &HashMap<String, Sent>,
        tables: &Tables,
        findings: &mut BTreeSet<Finding>,
    ) {
        let booking: Vec<&Handler> = self
            .handlers
            .iter()
            .filter(|handler| matches!(handler.effects, Effects::Booked))
            .collect();
        let mut due: HashMap<i64, i128> = HashMap::new();
        for (key, sent) in sent {
            let Some(amount) = sent.amount.filter(|_| tables.stored.contains_key(key)) else {
                continue;
            };
            for _ in booking.iter().filter(|h| h.takes(&sent.event_type)) {
                *due.entry(amount.abs() % ACCOUNTS).or_default() += i128::from(amount);
            }
        }
        for account in 0..ACCOUNTS {
            let expected = due.get(&account).copied().unwrap_or(0);
            let found = tables.balances.get(&account).copied();
            if found.unwrap_or(0) != expected {
                findings.insert(Finding::WrongBalance {
                    account,
                    expected,
                    found,
                });
            }
        }
    }
}

/// What was acknowledged is stored, once, with the content that was sent; nothing else is.
fn stored(sent: &HashMap<String, Sent>, tables: &Tables, findings: &mut BTreeSet<Finding>) {
    for (key, sent) in sent {
        let key = || key.clone();
        let stored = tables.stored.get(&key());
        if sent.acknowledged && stored.is_none() {
            findings.insert(Finding::AcknowledgedNotStored { key: key() });
        }
        if sent.fresh > 1 {
            findings.insert(Finding::TakenForNewTwice { key: key() });
        }
        if sent.forged_acknowledged {
            findings.insert(Finding::ForgedAcknowledged { key: key() });
        }
        if sent.conflict_acknowledged && !tables.conflicts.contains_key(&key()) {
            findings.insert(Finding::ConflictNotRecorded { key: key() });
        }
    }
    for (key, stored) in &tables.stored {
        let key = || key.clone();
        if stored.events != 1 || !stored.has_key {
            findings.insert(Finding::StoredTwice {
                key: key(),
                events: stored.events,
                keys: i64::from(stored.has_key),
            });
        }
        match sent.get(&key()).and_then(|sent| sent.amount) {
            None => {
                findings.insert(Finding::StoredNeverSent { key: key() });
            }
            Some(amount) if stored.amount != Some(amount) => {
                findings.insert(Finding::StoredOther { key: key() });
            }
            Some(_) => {}
        }
    }
    for (key, amount) in &tables.conflicts {
        if sent.get(key).and_then(|sent| sent.conflict) != Some(*amount) {
            findings.insert(Finding::ConflictNeverSent { key: key.clone() });
        }
    }
}

/// Each stored event that a handler takes has one outcome there and one effect, with the amount
/// that was sent; and there is no effect beyond these.
fn handled(
    handler: &Handler,
    effects: &ByKey,
    honours_key: bool,
    sent: &HashMap<String, Sent>,
    tables: &Tables,
    findings: &mut BTreeSet<Finding>,
) {
    let name = handler.name.to_owned();
    let outcomes = tables.outcomes.get(handler.name);
    for key in tables.stored.keys() {
        let Some(sent) = sent.get(key) else { continue };
        if !handler.takes(&sent.event_type) {
            continue;
        }
        let result = outcomes.and_then(|outcomes| outcomes.get(key));
        let (key, handler) = (key.clone(), name.clone());
        match (result.map(String::as_str), effects.contains_key(&key)) {
            (Some("succeeded"), true) => {}
            (Some("succeeded"), false) => {
                findings.insert(Finding::OutcomeWithoutEffect { key, handler });
            }
            (Some(result), _) => {
                let result = result.to_owned();
                findings.insert(Finding::NotSucceeded {
                    key,
                    handler,
                    result,
                });
            }
            (None, true) => {
                findings.insert(Finding::EffectWithoutOutcome { key, handler });
            }
            (None, false) => {
                findings.insert(Finding::NoOutcome { key, handler });
            }
        }
    }
    for (key, effect) in effects {
        let (key, handler) = (key.clone(), name.clone());
        let sent = sent.get(&key);
        let Some(amount) = sent.and_then(|sent| sent.amount) else {
            findings.insert(Finding::EffectNeverSent { key, handler });
            continue;
        };
        if effect.times > 1 && honours_key {
            let times = effect.times;
            findings.insert(Finding::EffectTwice {
                key: key.clone(),
                handler: handler.clone(),
                times,
            });
        }
        if effect.keys.len() > 1 {
            findings.insert(Finding::EffectKeyChanged {
                key: key.clone(),
                handler: handler.clone(),
            });
        }
        for found in effect.amounts.iter().filter(|found| **found != amount) {
            let (key, handler) = (key.clone(), handler.clone());
            findings.insert(if sent.and_then(|sent| sent.conflict) == Some(*found) {
                Finding::ConflictProcessed { key, handler }
            } else {
                Finding::WrongAmount { key, handler }
            });
        }
    }
}

fn read_applied(path: &std::path::Path) -> ByKey {
    let mut effects = ByKey::new();
    for entry in log::read(path) {
        if let Entry::Applied {
            effect_key,
            key,
            amount,
            ..
        } = entry
        {
            effects.entry(key).or_default().add(effect_key, amount);
        }
    }
    effects
}

impl Effect {
    fn add(&mut self, effect_key: String, amount: i64) {
        self.times += 1;
        self.keys.insert(effect_key);
        self.amounts.insert(amount);
    }
}
