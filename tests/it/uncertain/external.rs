//! `external` handlers of crate users: `examples/payout.rs` as it stands, and what its three parts may
//! do wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use actix_web::{App, HttpServer, web};
use oncehook::dispatch::{BreakerPolicy, BreakerState};
use oncehook::{
    Answer, Delivered, External, HandlerError, HandlerKind, HandlerSpec, Inbox as InboxRoutes,
    Limits, ProbeSchedule, Probed, Work, async_trait,
};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::inbox::{self, Inbox, event};
use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{TestDb, until};

#[expect(dead_code, reason = "its `main` is for those who run it")]
#[path = "../../../examples/payout.rs"]
mod example;

fn schedule(milliseconds: &[u64]) -> ProbeSchedule {
    let times = milliseconds.iter().copied().map(Duration::from_millis);
    ProbeSchedule::new(times.collect()).unwrap()
}

#[tokio::test]
async fn a_payout_whose_answer_is_lost_is_ordered_once_and_stands_in_the_applications_table() {
    let db = TestDb::blank().await;
    let books = web::Data::new(example::Service::default());
    let served = books.clone();
    let (service, ..) = serve(move |app| example::service(app, served.clone()));
    let service = format!("http://{service}");
    let probes = schedule(&[50, 3_600_000]);
    let engine = example::start(&db.url, STRIPE_SECRET, &service, probes)
        .await
        .unwrap();
    let inbox = InboxRoutes::new(engine.clone(), Limits::default());
    let (address, ..) = serve(move |app| {
        app.service(inbox.scope());
    });

    let http = reqwest::Client::new();
    for n in 1..=7 {
        let payment = json!({ "id": format!("pi_{n}"), "amount": n * 100 });
        let body = event(&format!("evt_{n}"), "payment_intent.succeeded", payment).to_string();
        let signature = signer::stripe(STRIPE_SECRET, signer::now_s(), body.as_bytes());
        let request = http.post(format!("http://{address}/webhooks/stripe-main"));
        let sent = request
            .header("stripe-signature", signature)
            .body(body)
            .send();
        assert_eq!(sent.await.unwrap().status(), 200);
    }
    until("every payout is recorded", async || {
        db.count("shop.payout").await == 7
    })
    .await;
    let mut amounts: Vec<i64> = books
        .orders()
        .into_iter()
        .map(|(_, amount)| amount)
        .collect();
    amounts.sort_unstable();
    assert_eq!(
        amounts,
        [100, 200, 300, 400, 500, 600, 700],
        "each ordered once"
    );
    let recorded: Vec<i64> = db
        .all("SELECT amount FROM shop.payout ORDER BY amount")
        .await;
    assert_eq!(recorded, amounts);
    let decided: Vec<String> = db
        .all("SELECT decided_by || ' ' || count(*) FROM oncehook.outcome GROUP BY decided_by ORDER BY 1")
        .await;
    assert_eq!(decided, ["handler 5", "probe 2"]);
    db.verify().await;
    engine.shutdown().await;
}

/// Serves these routes on a port of their own until the test ends.
fn serve(
    routes: impl Fn(&mut web::ServiceConfig) + Clone + Send + 'static,
) -> (std::net::SocketAddr, JoinHandle<std::io::Result<()>>) {
    let server = HttpServer::new(move || App::new().configure(|app| routes(app)))
        .workers(1)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
    (server.addrs()[0], tokio::spawn(server.run()))
}

/// A service that has the effect, whatever becomes of the call.
#[derive(Default)]
struct Odd {
    calls: AtomicU32,
    settles: AtomicU32,
    probes: AtomicU32,
    manner: Manner,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Manner {
    #[default]
    CallFails,
    CallPanics,
    CallHangs,
    SettleFails,
    SettlePanics,
    SettleCommits,
    SettleHangs,
    ProbePanics,
    ProbeHangs,
}

#[async_trait]
impl External for Odd {
    async fn call(&self, _: &str, _: &Delivered) -> Result<Answer, HandlerError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.manner {
            Manner::CallFails | Manner::ProbePanics | Manner::ProbeHangs => {
                Err("the line went dead".into())
            }
            Manner::CallPanics => panic!("a bug"),
            Manner::CallHangs => std::future::pending().await,
            _ => Ok(Answer::DoneWith("po_1".to_owned())),
        }
    }

    async fn settle(
        &self,
        event: &Delivered,
        answer: &Answer,
        work: &Work<'_>,
    ) -> Result<(), HandlerError> {
        assert_eq!(*answer, Answer::DoneWith("po_1".to_owned()));
        work.execute("INSERT INTO app.payout VALUES ($1)", &[&event.effect_key])
            .await?;
        // The first try goes wrong; what it wrote must not stay.
        if self.settles.fetch_add(1, Ordering::SeqCst) == 0 {
            match self.manner {
                Manner::SettleFails => return Err("no such account".into()),
                Manner::SettlePanics => panic!("a bug"),
                Manner::SettleCommits => {
                    work.execute("ROLLBACK", &[]).await?;
                }
                Manner::SettleHangs => std::future::pending().await,
                _ => {}
            }
        }
        Ok(())
    }

    async fn probe(&self, effect_key: &str, event: &Delivered) -> Result<Probed, HandlerError> {
        assert_eq!(effect_key, event.effect_key);
        if self.probes.fetch_add(1, Ordering::SeqCst) == 0 {
            match self.manner {
                Manner::ProbePanics => panic!("a bug"),
                Manner::ProbeHangs => std::future::pending().await,
                _ => {}
            }
        }
        Ok(Probed::Applied {
            resource: Some("po_1".to_owned()),
        })
    }
}

#[tokio::test]
async fn whatever_its_parts_do_the_call_is_made_once_and_its_writes_are_there_once() {
    let manners = [
        Manner::CallFails,
        Manner::CallPanics,
        Manner::CallHangs,
        Manner::SettleFails,
        Manner::SettlePanics,
        Manner::SettleCommits,
        Manner::SettleHangs,
        Manner::ProbePanics,
        Manner::ProbeHangs,
    ];
    let odd = manners.map(|manner| {
        Arc::new(Odd {
            manner,
            ..Odd::default()
        })
    });
    let handlers = odd.iter().map(|odd| {
        let kind = HandlerKind::External(Arc::clone(odd) as Arc<dyn External>);
        let name = format!("{:?}", odd.manner).to_lowercase();
        HandlerSpec {
            timeout: Duration::from_millis(500),
            lease: Duration::from_secs(30),
            probes: schedule(&[50, 100, 3_600_000]),
            ..HandlerSpec::new(name, inbox::every(), kind)
        }
    });
    let tables = "CREATE SCHEMA app; CREATE TABLE app.payout (effect_key text NOT NULL)";
    let inbox = Inbox::start(tables, handlers.collect()).await;
    inbox
        .put(&event("evt_1", "charge.succeeded", json!({ "id": "ch_1" })))
        .await;
    until("every handler has its outcome", async || {
        inbox
            .db
            .count("outcome WHERE result = 'succeeded' AND resource = 'po_1'")
            .await
            == 9
    })
    .await;
    for odd in &odd {
        assert_eq!(odd.calls.load(Ordering::SeqCst), 1, "{:?}", odd.manner);
    }
    let written = "SELECT count(*) = 9 AND count(DISTINCT effect_key) = 9 FROM app.payout";
    assert!(inbox.db.one::<bool>(written).await);
    // Each was unknown once, whatever it was that failed.
    let unknown: Vec<String> = inbox
        .db
        .all("SELECT DISTINCT error FROM oncehook.attempt WHERE verdict = 'unknown' ORDER BY 1")
        .await;
    assert_eq!(
        unknown,
        [
            "no answer within 500ms: result unknown",
            "the call was made and could not be settled: no such account",
            "the call was made and could not be settled: the handler panicked",
            "the call was made, and settle ended the engine's transaction",
            "the call was made, and settle took longer than 500ms",
            "the handler panicked: result unknown",
            "the line went dead",
        ]
    );
    assert_eq!(inbox.db.count("attempt WHERE verdict = 'unknown'").await, 9);
    inbox.db.verify().await;
}

#[tokio::test]
async fn a_service_that_does_not_answer_is_left_alone() {
    const EVENTS: usize = 30;
    let odd = Arc::new(Odd {
        manner: Manner::CallFails,
        ..Odd::default()
    });
    let kind = HandlerKind::External(Arc::clone(&odd) as Arc<dyn External>);
    let breaker = BreakerPolicy {
        minimum: 5,
        first: Duration::from_hours(1),
        max: Duration::from_hours(1),
        ..BreakerPolicy::default()
    };
    let calls = HandlerSpec {
        concurrency: 2,
        breaker: Some(breaker),
        probes: schedule(&[3_600_000]),
        ..HandlerSpec::new("calls", inbox::every(), kind)
    };
    let tables = "CREATE SCHEMA app; CREATE FUNCTION app.done(oncehook.delivered) RETURNS void LANGUAGE sql AS ''";
    let others = inbox::sql("others", "app.done");
    let inbox = Inbox::start(tables, vec![calls, others]).await;
    for n in 0..EVENTS {
        inbox
            .put(&event(&format!("evt_{n}"), "charge.succeeded", json!({})))
            .await;
    }
    until("its breaker is open", async || {
        let handlers = inbox
            .db
            .one::<i32>("SELECT id FROM oncehook.handler WHERE name = 'calls'");
        inbox.engine.breaker(handlers.await) == Some(BreakerState::Open)
    })
    .await;
    until("what was out has ended, and others go on", async || {
        inbox.db.count("outcome").await == 30
            && inbox.db.count("delivery WHERE state = 'leased'").await == 0
    })
    .await;
    let called = odd.calls.load(Ordering::SeqCst);
    // Those it took, and the other that was out.
    assert!((5..=6).contains(&called), "{called} calls");
    assert_eq!(
        inbox.db.count("delivery WHERE state = 'ready'").await,
        30 - i64::from(called)
    );
    assert_eq!(
        inbox.db.count("delivery WHERE state = 'uncertain'").await,
        i64::from(called)
    );
}
