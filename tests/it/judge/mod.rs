//! The outside judge, put to the test: an honest run is acquitted, every doctored one convicted.
//! Then receivers of every manner under its eyes.

mod service;
mod unknown;
mod world;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;

use crate::support::judge::trial::{CALL_LINES, PAID, REFUNDED, SHIPPED, SQL_LINES};
use crate::support::judge::{Behaviour, Effects, Entry, Finding, Judge, Kind, Message, Trial};
use crate::support::{TestApp, TestDb, until};

/// Waits until no delivery is left.
async fn until_done(db: &TestDb) {
    until("nothing is left to do", async || {
        db.count("delivery").await == 0
    })
    .await;
}

/// Six payments, three refunds, three shipments; copies of all, a conflict, a forged request.
async fn honest_run() -> (Trial, TestApp) {
    let trial = Trial::new(true, |_, _| Behaviour::Good).await;
    let app = trial.app(SQL_LINES, CALL_LINES).start().await;
    for n in 0..12 {
        let event = Message::original(n, [PAID, REFUNDED, PAID, SHIPPED][n % 4]);
        trial.put(&app, &event).await;
        trial.put(&app, &event.copy()).await;
        if n == 2 {
            trial.put(&app, &event.conflict()).await;
        }
    }
    let refused = trial.provider.send(app.public, &Message::forged(0)).await;
    assert_eq!(refused.unwrap().status, 401);
    until_done(&app.db).await;
    trial.flush().await;
    (trial, app)
}

/// What is changed after an honest run, and what the judge must say to it.
struct Doctored {
    what: &'static str,
    sql: &'static str,
    sent: Vec<Entry>,
    applied: Vec<Entry>,
    findings: Vec<Finding>,
}

fn doctored(what: &'static str, findings: Vec<Finding>) -> Doctored {
    Doctored {
        what,
        sql: "",
        sent: Vec::new(),
        applied: Vec::new(),
        findings,
    }
}

fn sent(key: &str) -> Entry {
    Entry::Sent {
        at_us: 1,
        key: key.to_owned(),
        kind: Kind::Original,
        event_type: PAID.to_owned(),
        amount: 5,
    }
}

fn told_200(key: &str, kind: Kind) -> Entry {
    Entry::Answered {
        at_us: 2,
        key: key.to_owned(),
        kind,
        status: 200,
        replayed: false,
        took_us: 1,
    }
}

fn applied(key: &str, effect_key: &str, amount: i64) -> Entry {
    Entry::Applied {
        at_us: 3,
        effect_key: effect_key.to_owned(),
        key: key.to_owned(),
        amount,
    }
}

/// What was done to the logs.
fn in_logs(shipped_key: &str) -> Vec<Doctored> {
    let key = |key: &str| key.to_owned();
    let shipping = || key("shipping");
    vec![
        Doctored {
            sent: vec![sent("evt_lost"), told_200("evt_lost", Kind::Original)],
            ..doctored(
                "an acknowledged event is missing",
                vec![Finding::AcknowledgedNotStored {
                    key: key("evt_lost"),
                }],
            )
        },
        Doctored {
            sent: vec![told_200("evt_0", Kind::Copy)],
            ..doctored(
                "a copy was taken for new",
                vec![Finding::TakenForNewTwice { key: key("evt_0") }],
            )
        },
        Doctored {
            sent: vec![told_200("forged_0", Kind::Forged)],
            ..doctored(
                "a forged request was acknowledged",
                vec![Finding::ForgedAcknowledged {
                    key: key("forged_0"),
                }],
            )
        },
        Doctored {
            applied: vec![applied("evt_ghost", "k", 5)],
            ..doctored(
                "the service applied what nobody sent",
                vec![Finding::EffectNeverSent {
                    key: key("evt_ghost"),
                    handler: shipping(),
                }],
            )
        },
        Doctored {
            applied: vec![applied("evt_3", shipped_key, 4)],
            ..doctored(
                "the service applied one effect key twice",
                vec![Finding::EffectTwice {
                    key: key("evt_3"),
                    handler: shipping(),
                    times: 2,
                }],
            )
        },
        Doctored {
            applied: vec![applied("evt_3", "another", 4)],
            ..doctored(
                "one event came under two effect keys",
                vec![
                    Finding::EffectTwice {
                        key: key("evt_3"),
                        handler: shipping(),
                        times: 2,
                    },
                    Finding::EffectKeyChanged {
                        key: key("evt_3"),
                        handler: shipping(),
                    },
                ],
            )
        },
    ]
}

/// What was done to the business tables.
fn in_business_tables() -> Vec<Doctored> {
    let evt = |n: usize| format!("evt_{n}");
    let ledger = || "ledger".to_owned();
    let table = |what, sql, finding| Doctored {
        sql,
        ..doctored(what, vec![finding])
    };
    vec![
        table(
            "an effect is booked twice",
            "INSERT INTO app.booking SELECT * FROM app.booking WHERE key = 'evt_0'",
            Finding::EffectTwice {
                key: evt(0),
                handler: ledger(),
                times: 2,
            },
        ),
        table(
            "a balance is wrong",
            "UPDATE app.account SET balance = balance + 1 WHERE id = 1",
            Finding::WrongBalance {
                account: 1,
                expected: 1,
                found: Some(2),
            },
        ),
        table(
            "a booking of what was never acknowledged nor sent",
            "INSERT INTO app.booking VALUES ('ledger', 'evt_ghost', 5, 'k')",
            Finding::EffectNeverSent {
                key: "evt_ghost".to_owned(),
                handler: ledger(),
            },
        ),
        table(
            "an outcome without its effect",
            "DELETE FROM app.booking WHERE key = 'evt_0'",
            Finding::OutcomeWithoutEffect {
                key: evt(0),
                handler: ledger(),
            },
        ),
        table(
            "a conflict was processed",
            "UPDATE app.booking SET amount = -amount WHERE key = 'evt_2'",
            Finding::ConflictProcessed {
                key: evt(2),
                handler: ledger(),
            },
        ),
        table(
            "another amount was booked",
            "UPDATE app.booking SET amount = 77 WHERE key = 'evt_0'",
            Finding::WrongAmount {
                key: evt(0),
                handler: ledger(),
            },
        ),
    ]
}

/// What was done to oncehook's own tables.
fn in_stored_events() -> Vec<Doctored> {
    let evt = |n: usize| format!("evt_{n}");
    let ledger = || "ledger".to_owned();
    let table = |what, sql, finding| Doctored {
        sql,
        ..doctored(what, vec![finding])
    };
    vec![
        table(
            "an event without its key",
            "DELETE FROM oncehook.event_key WHERE key = 'evt_0'",
            Finding::StoredTwice {
                key: evt(0),
                events: 1,
                keys: 0,
            },
        ),
        table(
            "an effect without an outcome",
            "DELETE FROM oncehook.outcome o USING oncehook.event e WHERE e.id = o.event_id AND e.key = 'evt_0'",
            Finding::EffectWithoutOutcome {
                key: evt(0),
                handler: ledger(),
            },
        ),
        table(
            "neither effect nor outcome",
            "DELETE FROM oncehook.outcome o USING oncehook.event e WHERE e.id = o.event_id AND e.key = 'evt_0';
             DELETE FROM app.booking WHERE key = 'evt_0'",
            Finding::NoOutcome {
                key: evt(0),
                handler: ledger(),
            },
        ),
        table(
            "a dead letter",
            "UPDATE oncehook.outcome o SET result = 'dead' FROM oncehook.event e WHERE e.id = o.event_id AND e.key = 'evt_0'",
            Finding::NotSucceeded {
                key: evt(0),
                handler: ledger(),
                result: "dead".to_owned(),
            },
        ),
        table(
            "work that is left",
            "INSERT INTO oncehook.delivery (event_id, handler_id)
             SELECT e.id, h.id FROM oncehook.event e, oncehook.handler h WHERE e.key = 'evt_0' AND h.name = 'flaky'",
            Finding::Unfinished {
                key: evt(0),
                handler: "flaky".to_owned(),
            },
        ),
        table(
            "a conflict is not recorded",
            "DELETE FROM oncehook.conflict",
            Finding::ConflictNotRecorded { key: evt(2) },
        ),
        table(
            "a conflict of what nobody sent",
            "INSERT INTO oncehook.conflict
             SELECT source_id, 'evt_0', raw_digest, event_id, first_digest, seen_at, '{\"amount\": 7}', secret_label FROM oncehook.conflict",
            Finding::ConflictNeverSent { key: evt(0) },
        ),
        table(
            "other content is stored",
            "UPDATE oncehook.request r SET body = '{\"amount\": 7}' FROM oncehook.event e WHERE e.request_id = r.id AND e.key = 'evt_0';
             UPDATE oncehook.event SET item_length = 13 WHERE key = 'evt_0'",
            Finding::StoredOther { key: evt(0) },
        ),
        table(
            "an event that nobody sent",
            "INSERT INTO oncehook.event_key SELECT source_id, 'evt_ghost', event_id, raw_digest, canonical_digest, digest_rule, first_seen
               FROM oncehook.event_key WHERE key = 'evt_0';
             INSERT INTO oncehook.event SELECT oncehook.uuid7(now()), request_id, item_offset, item_length, source_id, 'evt_ghost', provider_id,
               type, entity, account, mode, occurred_at, correlation_id, state, state_reason, routes FROM oncehook.event WHERE key = 'evt_0'",
            Finding::StoredNeverSent {
                key: "evt_ghost".to_owned(),
            },
        ),
    ]
}

/// The same judge over copies of the logs with further lines.
fn with_lines(judge: &Judge, folder: &Path, doctored: &Doctored) -> Judge {
    let copy = |path: &Path, name: &str, more: &[Entry]| {
        let copied = folder.join(name);
        fs::copy(path, &copied).unwrap();
        let mut file = fs::File::options().append(true).open(&copied).unwrap();
        for entry in more {
            writeln!(file, "{}", serde_json::to_string(entry).unwrap()).unwrap();
        }
        copied
    };
    let mut judge = judge.clone();
    judge.sent = copy(&judge.sent, "sent", &doctored.sent);
    for handler in &mut judge.handlers {
        if let Effects::Applied { log, .. } = &mut handler.effects {
            *log = copy(log, "applied", &doctored.applied);
        }
    }
    judge
}

#[tokio::test]
async fn the_judge_acquits_an_honest_run_and_convicts_every_doctored_one() {
    let (trial, app) = honest_run().await;
    let client = app.db.client().await;
    assert_eq!(trial.judge.findings(&client).await, BTreeSet::new());
    assert_eq!(trial.judge.acknowledged(), 12);

    let effect_key: String = app.until_outcome("shop", "evt_3", "shipping").await["effect_key"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut kinds = BTreeSet::new();
    let cases = in_logs(&effect_key)
        .into_iter()
        .chain(in_business_tables())
        .chain(in_stored_events());
    for case in cases {
        let folder = tempfile::tempdir().unwrap();
        let judge = with_lines(&trial.judge, folder.path(), &case);
        client.batch_execute("BEGIN").await.unwrap();
        client.batch_execute(case.sql).await.unwrap();
        let found = judge.findings(&client).await;
        client.batch_execute("ROLLBACK").await.unwrap();
        kinds.extend(case.findings.iter().map(kind));
        let expected: BTreeSet<Finding> = case.findings.into_iter().collect();
        assert_eq!(found, expected, "{}", case.what);
    }
    assert_eq!(kinds.len(), 19, "every kind of finding: {kinds:?}");
}

/// The name of a kind of finding.
fn kind(finding: &Finding) -> String {
    let shown = format!("{finding:?}");
    shown.split(' ').next().unwrap().to_owned()
}
