//! What handlers, probes and people call the thing that was made: whatever it is, the outcome is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oncehook::store::{Resolution, ResolveRequest, StoreError};
use oncehook::{
    Answer, Delivered, External, Function, HandlerError, HandlerKind, HandlerSpec, ProbeSchedule,
    Probed, Work, async_trait,
};
use serde_json::json;

use crate::support::inbox::{self, Inbox, event, quick};
use crate::support::until;

/// A body that a careless receiver answers with.
fn body() -> String {
    format!("po\0_1\r\n{}", "x".repeat(100_000))
}

/// The start of what is kept of it, and how long that is.
const KEPT: &str = r"po\u{0}_1\r\nxxx 1001";

#[derive(Debug, Default)]
struct Careless {
    calls: AtomicU32,
    /// The answer to its call is lost.
    loses: bool,
    /// It can be asked.
    knows: bool,
}

#[async_trait]
impl External for Careless {
    async fn call(&self, _: &str, _: &Delivered) -> Result<Answer, HandlerError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.loses {
            return Err("the line went dead".into());
        }
        Ok(Answer::DoneWith(body()))
    }

    async fn settle(&self, _: &Delivered, _: &Answer, _: &Work<'_>) -> Result<(), HandlerError> {
        Ok(())
    }

    async fn probe(&self, _: &str, _: &Delivered) -> Result<Probed, HandlerError> {
        if !self.knows {
            return Err("the line is dead".into());
        }
        let resource = Some(body());
        Ok(Probed::Applied { resource })
    }
}

#[async_trait]
impl Function for Careless {
    async fn handle(&self, _: &Delivered, _: &Work<'_>) -> Result<Answer, HandlerError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(Answer::DoneWith(body()))
    }
}

/// Answers what jsonb can hold of it.
const BOOK: &str = "
CREATE SCHEMA app;
CREATE FUNCTION app.book(event oncehook.delivered) RETURNS jsonb LANGUAGE sql AS $$
  SELECT jsonb_build_object('resource', E'po\\u0001_1\\r\\n' || repeat('x', 100000))
$$";

#[tokio::test]
async fn whatever_is_said_to_be_made_the_outcome_is_written_at_once() {
    let of = |loses, knows| {
        Arc::new(Careless {
            loses,
            knows,
            ..Careless::default()
        })
    };
    let (answers, asked, told) = (of(false, false), of(true, true), of(true, false));
    let function = of(false, false);
    let named = |name: &str, kind| HandlerSpec {
        probes: ProbeSchedule::new(vec![std::time::Duration::from_millis(50)]).unwrap(),
        ..quick(HandlerSpec::new(name, inbox::every(), kind))
    };
    let external = |code: &Arc<Careless>| HandlerKind::External(Arc::clone(code) as _);
    let handlers = vec![
        named("answers", external(&answers)),
        named("asked", external(&asked)),
        named("told", external(&told)),
        named(
            "function",
            HandlerKind::Function(Arc::clone(&function) as _),
        ),
        inbox::sql("sql", "app.book"),
    ];
    let inbox = Inbox::start(BOOK, handlers).await;
    inbox
        .put(&event("evt_1", "charge.succeeded", json!({})))
        .await;
    until("four have ended, and one waits for a person", async || {
        inbox.db.count("outcome").await == 4
            && inbox
                .db
                .count("delivery WHERE state = 'uncertain' AND run_at = 'infinity'")
                .await
                == 1
    })
    .await;
    let mut order = ResolveRequest {
        source: "stripe".into(),
        key: "evt_1".into(),
        handler: "told".into(),
        resolution: Resolution::Succeeded,
        reason: "by telephone".into(),
        evidence: Some(body()),
        actor: "test".into(),
    };
    let refused = inbox.engine.store().resolve(&order).await;
    assert!(
        matches!(refused, Err(StoreError::Refused(_))),
        "{refused:?}"
    );
    order.evidence = Some(body().replace('\0', "\u{1}"));
    inbox.engine.store().resolve(&order).await.unwrap();
    let made: Vec<String> = inbox
        .db
        .all("SELECT concat_ws(' ', h.name, o.result, left(o.resource, 16), length(o.resource)) FROM oncehook.outcome o JOIN oncehook.handler h ON h.id = o.handler_id ORDER BY 1")
        .await;
    let succeeded = |name: &str| format!("{name} succeeded {KEPT}");
    let other = |name: &str| succeeded(name).replace("{0}", "{1}");
    assert_eq!(
        made,
        [
            succeeded("answers"),
            succeeded("asked"),
            succeeded("function"),
            other("sql"),
            other("told"),
        ]
    );
    for code in [answers, asked, told, function] {
        assert_eq!(code.calls.load(Ordering::SeqCst), 1);
    }
    assert_eq!(
        inbox.db.count("attempt WHERE verdict = 'retry'").await,
        0,
        "none was tried again"
    );
    inbox.db.verify().await;
}
