//! What must hold after every run, looked at from outside: the senders' and the receiver's records
//! against the tables, and a ledger of plain inserts against both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::Received;

use super::outside::{Expected, Log, Look, Outside};
use super::service::Service;

/// Each finds rows that must not exist, described in one column. $1: the keys of this run, as a
/// pattern.
const NEVER: &[(&str, &str)] = &[
    (
        "a key without exactly its one event",
        // And one more for each time that a key of an operation was renewed.
        "SELECT k.key FROM oncehook.event_key k LEFT JOIN oncehook.event e ON e.source_id = k.source_id AND e.key = k.key
          WHERE k.key LIKE $1 GROUP BY k.source_id, k.key, k.event_id, k.generation
         HAVING count(e.id) <> 1 + k.generation OR NOT bool_or(e.id = k.event_id)",
    ),
    (
        "an event without its key",
        "SELECT e.key FROM oncehook.event e LEFT JOIN oncehook.event_key k ON k.source_id = e.source_id AND k.key = e.key
          WHERE e.key LIKE $1 AND k.event_id IS NULL",
    ),
    (
        "an outcome of an operation without its one answer, or an answer without its outcome",
        "SELECT e.key || ' run ' || coalesce(o.run, p.run) FROM oncehook.event e
           JOIN oncehook.handler h ON h.operation_of = e.source_id
           LEFT JOIN oncehook.outcome o ON o.event_id = e.id AND o.handler_id = h.id
           FULL JOIN oncehook.response p ON p.event_id = o.event_id AND p.handler_id = o.handler_id AND p.run = o.run
          WHERE e.key LIKE $1 AND (o.run IS NULL OR p.body IS NULL)",
    ),
    (
        "an event without the bytes it came in",
        "SELECT e.key FROM oncehook.event e LEFT JOIN oncehook.request r ON r.id = e.request_id
          WHERE e.key LIKE $1 AND (r.id IS NULL OR e.item_offset + e.item_length > octet_length(r.body))",
    ),
    (
        "a handler of an event without an outcome",
        "SELECT e.key || ' ' || h FROM oncehook.event e, unnest(e.routes) h
          WHERE e.key LIKE $1 AND NOT EXISTS (SELECT FROM oncehook.outcome o WHERE o.event_id = e.id AND o.handler_id = h)",
    ),
    (
        "a delivery left",
        "SELECT d.event_id || ' ' || d.handler_id FROM oncehook.delivery d WHERE $1 <> ''",
    ),
    (
        "an outcome of an operator, or a further run, without its audit row",
        "SELECT e.key || ' run ' || o.run FROM oncehook.outcome o JOIN oncehook.event e ON e.id = o.event_id
           JOIN oncehook.handler h ON h.id = o.handler_id
          WHERE e.key LIKE $1 AND (
            (o.run > 1 AND 1 <> (SELECT count(*) FROM oncehook.audit a WHERE a.subject = e.id::text
               AND a.action IN ('event.replay', 'event.replay.force', 'operation.again') AND (a.after ->> 'run')::int = o.run))
            OR (o.decided_by = 'operator' AND 1 <> (SELECT count(*) FROM oncehook.audit a
               WHERE (a.subject = h.name AND a.action = 'handler.retire')
                  OR (a.subject = e.id::text AND a.action = 'event.resolve' AND a.after ->> 'as' = o.result))))",
    ),
    (
        "an audit row of a run that was never there",
        "SELECT a.action || ' ' || a.subject FROM oncehook.audit a JOIN oncehook.event e ON e.id::text = a.subject
          WHERE e.key LIKE $1 AND NOT EXISTS (SELECT FROM oncehook.outcome o WHERE o.event_id = e.id
            AND o.run = (a.after ->> 'run')::int)",
    ),
    (
        "a first run by command without exactly one audit row",
        "SELECT e.key FROM oncehook.event e JOIN oncehook.outcome o ON o.event_id = e.id
           JOIN oncehook.handler h ON h.id = o.handler_id AND h.name = 'late'
          WHERE e.key LIKE $1 AND 1 <> (SELECT count(*) FROM oncehook.audit a WHERE a.subject = e.id::text AND a.action = 'event.replay.missing')",
    ),
    (
        "a booking without its succeeded outcome",
        "SELECT l.handler || ' ' || l.key || ' run ' || l.run FROM app.ledger l
          WHERE l.key LIKE $1 AND NOT EXISTS (SELECT FROM oncehook.event e JOIN oncehook.outcome o ON o.event_id = e.id
            JOIN oncehook.handler h ON h.id = o.handler_id
            WHERE e.key = l.key AND h.name = l.handler AND o.run = l.run AND o.result = 'succeeded')",
    ),
    (
        // A stale worker that settled after all would bring its old count.
        "an outcome that counts other tries than its history",
        "SELECT e.key || ' at ' || h.name || ': ' || o.attempts FROM oncehook.outcome o JOIN oncehook.event e ON e.id = o.event_id
           JOIN oncehook.handler h ON h.id = o.handler_id
          WHERE e.key LIKE $1 AND o.decided_by = 'handler'
            AND o.attempts <> (o.result = 'succeeded')::int + (SELECT count(*) FROM oncehook.attempt a
              WHERE a.event_id = o.event_id AND a.handler_id = o.handler_id AND a.run = o.run AND a.verdict NOT IN ('evidence', 'probe'))",
    ),
    (
        "a lease token that was lost twice",
        "SELECT a.lease_token::text FROM oncehook.attempt a JOIN oncehook.event e ON e.id = a.event_id
          WHERE e.key LIKE $1 AND a.verdict <> 'evidence' GROUP BY a.lease_token HAVING count(*) > 1",
    ),
];

/// Sentences about everything that does not hold. `booked`: what must have been booked in this
/// database in all.
pub(super) async fn broken(
    outside: &Outside,
    calls: &[Received],
    service: &Service,
    booked: i64,
) -> Vec<String> {
    let look = &outside.look;
    let mut broken = Vec::new();
    let keys = outside.keys();
    for (what, sql) in NEVER {
        for text in texts(look, sql, &keys).await {
            broken.push(format!("{what}: {text}"));
        }
    }
    let log = std::mem::take(&mut *outside.log.lock().unwrap());
    received(look, &keys, &log, &mut broken).await;
    answered(look, &keys, &log, &mut broken).await;
    handled(look, &keys, &log, calls, &mut broken).await;
    let doubtful = |expected: &&Expected| {
        ["doubt", "open", "order", "ask"].contains(&expected.handler.as_str())
    };
    broken.extend(
        log.expected
            .iter()
            .filter(doubtful)
            .filter_map(|expected| service.wrong(expected.key.trim_start_matches("local:"))),
    );

    let totals = "SELECT total || ' ' || (SELECT coalesce(sum(amount), 0) FROM app.ledger) FROM app.balance WHERE $1 <> ''";
    let totals = texts(look, totals, &keys).await;
    if totals != [format!("{booked} {booked}")] {
        broken.push(format!(
            "balance and ledger are {totals:?}, expected {booked} each"
        ));
    }
    broken
}

/// What was acknowledged is stored, and what contradicted it recorded.
async fn received(look: &Look, keys: &str, log: &Log, broken: &mut Vec<String>) {
    let stored = texts(
        look,
        "SELECT s.name || ' ' || k.key FROM oncehook.event_key k JOIN oncehook.source s ON s.id = k.source_id WHERE s.name <> 'inner' AND k.key LIKE $1",
        keys,
    )
    .await;
    let stored: BTreeSet<String> = stored.into_iter().collect();
    let sent = log
        .acknowledged
        .iter()
        .map(|(source, key)| format!("{source} {key}"));
    let sent: BTreeSet<String> = sent.collect();
    // Every sender came again until it was told 2xx, so the two sets are equal in the end.
    if stored != sent {
        broken.push(format!("acknowledged {sent:?}, stored {stored:?}"));
    }

    let conflicts = texts(
        look,
        "SELECT key FROM oncehook.conflict WHERE key LIKE $1",
        keys,
    )
    .await;
    if conflicts != log.conflicts {
        broken.push(format!(
            "conflicts {:?}, recorded {conflicts:?}",
            log.conflicts
        ));
    }
}

/// What clients of operations were answered is what is stored.
async fn answered(look: &Look, keys: &str, log: &Log, broken: &mut Vec<String>) {
    broken.extend(log.wrong.iter().cloned());
    let sql = "SELECT k.key, p.status::int, p.body FROM oncehook.event_key k
                 JOIN oncehook.handler h ON h.operation_of = k.source_id
                 JOIN oncehook.response p ON p.event_id = k.event_id AND p.handler_id = h.id
                WHERE k.key LIKE $1 ORDER BY p.run";
    let rows = look.rows(sql, &[&keys]).await;
    let rows = rows.expect("the database answers when all is quiet");
    let stored: BTreeMap<String, (u16, Vec<u8>)> = rows
        .iter()
        .map(|row| {
            let status = u16::try_from(row.get::<_, i32>(1)).unwrap();
            (row.get(0), (status, row.get(2)))
        })
        .collect();
    if stored != log.answers {
        broken.push(format!("answered {:?}, stored {stored:?}", log.answers));
    }
}

/// Each event has its outcomes and its effects, and nothing else has any.
async fn handled(look: &Look, keys: &str, log: &Log, calls: &[Received], broken: &mut Vec<String>) {
    let outcomes = pairs(
        look,
        "SELECT e.key || ' at ' || h.name, o.result FROM oncehook.outcome o JOIN oncehook.event e ON e.id = o.event_id
           JOIN oncehook.handler h ON h.id = o.handler_id WHERE e.key LIKE $1 ORDER BY e.id, o.run",
        keys,
    )
    .await;
    let ledger = pairs(
        look,
        "SELECT key || ' at ' || handler, run || ':' || amount FROM app.ledger WHERE key LIKE $1",
        keys,
    )
    .await;
    for expected in &log.expected {
        let pair = format!("{} at {}", expected.key, expected.handler);
        let results = outcomes.get(&pair).cloned().unwrap_or_default();
        let wanted = expected.results.repeat(1 + expected.further.len());
        if results != wanted {
            broken.push(format!("{pair}: outcomes {results:?}, expected {wanted:?}"));
        }
        let mut bookings = ledger.get(&pair).cloned().unwrap_or_default();
        let mut wanted = expected.bookings();
        bookings.sort_unstable();
        wanted.sort_unstable();
        if bookings != wanted {
            broken.push(format!(
                "{pair}: booked (run:amount) {bookings:?}, expected {wanted:?}"
            ));
        }
        if expected.handler == "outside" {
            broken.extend(called(&pair, &expected.key, calls));
        }
    }
    let known: BTreeSet<String> = log
        .expected
        .iter()
        .map(|e| format!("{} at {}", e.key, e.handler))
        .collect();
    for pair in outcomes
        .keys()
        .chain(ledger.keys())
        .filter(|pair| !known.contains(*pair))
    {
        broken.push(format!("{pair}: nobody expected that"));
    }

    let keys_used = pairs(
        look,
        "SELECT key || ' at ' || handler, effect_key FROM app.ledger WHERE key LIKE $1",
        keys,
    )
    .await;
    for (pair, effects) in keys_used {
        let distinct: BTreeSet<&String> = effects.iter().collect();
        if distinct.len() != effects.len() {
            broken.push(format!("{pair}: two effects under one effect key"));
        }
    }
}

/// The receiver honours keys: it applies what comes first and answers copies alike. So all calls
/// for an event must carry one and the same key, and there must be one.
fn called(pair: &str, key: &str, calls: &[Received]) -> Option<String> {
    let needle = format!("\"{key}\"");
    let keys: BTreeSet<&str> = calls
        .iter()
        .filter(|call| String::from_utf8_lossy(&call.body).contains(&needle))
        .map(|call| call.header("idempotency-key").unwrap_or("none"))
        .collect();
    (keys.len() != 1 || keys.contains("none"))
        .then(|| format!("{pair}: called under the effect keys {keys:?}, expected one"))
}

/// What keeps a run from its end: events that were acknowledged and are not there, deliveries,
/// sessions at work.
pub(super) async fn left(outside: &Outside) -> String {
    let sql = "SELECT row_to_json(d)::text FROM oncehook.delivery d WHERE $1 <> ''
      UNION ALL SELECT row_to_json(x)::text FROM (SELECT application_name, state, wait_event, now() - xact_start AS since, left(query, 80) AS query
        FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()) x";
    let look = async {
        let stored = "SELECT key FROM oncehook.event_key WHERE key LIKE $1";
        let stored = texts(&outside.look, stored, &outside.keys()).await;
        let mut left = texts(&outside.look, sql, "all").await;
        let log = outside.log.lock().unwrap();
        let lost = log
            .acknowledged
            .iter()
            .filter(|(_, key)| !stored.contains(key));
        left.extend(
            lost.map(|(source, key)| format!("acknowledged and not stored: {source} {key}")),
        );
        left.join("\n")
    };
    tokio::time::timeout(Duration::from_secs(5), look)
        .await
        .unwrap_or_else(|_| "the database does not answer".to_owned())
}

async fn texts(look: &Look, sql: &str, keys: &str) -> Vec<String> {
    let rows = look.rows(sql, &[&keys]).await;
    let rows = rows.expect("the database answers when all is quiet");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn pairs(look: &Look, sql: &str, keys: &str) -> BTreeMap<String, Vec<String>> {
    let rows = look.rows(sql, &[&keys]).await;
    let mut pairs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in rows.expect("the database answers when all is quiet") {
        pairs.entry(row.get(0)).or_default().push(row.get(1));
    }
    pairs
}

impl Expected {
    /// What the ledger must hold: one row for each run of each intent that succeeded.
    fn bookings(&self) -> Vec<String> {
        let amounts = [&[self.amount], self.further.as_slice()].concat();
        let booked = amounts.iter().filter(|amount| **amount != 0);
        booked
            .flat_map(|amount| {
                let runs = self.results.iter().enumerate();
                let done = runs.filter(|(_, result)| **result == "succeeded");
                done.map(move |(index, _)| format!("{}:{amount}", index + 1))
            })
            .collect()
    }
}

impl Outside {
    /// What this run must have booked in all.
    pub(super) fn booked(&self) -> i64 {
        let log = self.log.lock().unwrap();
        let bookings = log.expected.iter().flat_map(Expected::bookings);
        bookings
            .map(|booking| {
                let (_, amount) = booking.split_once(':').unwrap();
                amount.parse::<i64>().unwrap()
            })
            .sum()
    }
}
