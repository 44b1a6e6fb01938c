//! Operations among the sources and handlers of an engine.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::dispatch::HandlerSpec;
use crate::domain::operation::OperationSpec;
use crate::domain::{EventKey, Item};
use crate::provider::{OnConflict, Source, operation};
use crate::store::OperationEnd;
use crate::store::operation::{NewOperation, Rules};

use super::{ActiveSource, Engine};

/// An operation that clients may submit.
#[derive(Debug, Clone)]
pub struct ActiveOperation {
    /// Its source, to submit by.
    pub source: ActiveSource,
    /// Registry id of its handler.
    pub handler: i32,
    /// What is configured.
    pub spec: OperationSpec,
}

impl ActiveOperation {
    /// The intent that a client named by a key (`client:key`), as it is submitted.
    pub fn item(&self, key: EventKey, body: &[u8]) -> Item {
        operation::item(self.source.source.provider.as_ref(), key, body)
    }
}

impl Engine {
    /// Ends of operations from now on, as far as this node hears of them: a wake-up that may be lost, never the
    /// truth. A receiver that has lagged looks at everything that it waits for, as at [`OperationEnd::Some`].
    pub fn operation_ends(&self) -> broadcast::Receiver<OperationEnd> {
        self.0.wake.operation_ends()
    }

    /// The operation of this name.
    pub fn operation(&self, name: &str) -> Option<ActiveOperation> {
        let active = self.0.registry.current();
        let (id, source) = active.sources.get(name).cloned()?;
        let handler = *active.operations.get(&id)?;
        let spec = active.handlers.get(&handler)?.spec.operation.clone()?;
        Some(ActiveOperation {
            source: ActiveSource { id, source, active },
            handler,
            spec,
        })
    }
}

/// The sources of the handlers that serve operations, which stand behind those that are configured, and what
/// is registered of them.
pub(super) fn of(handlers: &[HandlerSpec], before: usize) -> (Vec<Source>, Vec<NewOperation>) {
    let serving = handlers.iter().enumerate();
    let serving = serving.filter_map(|(at, spec)| Some((at, spec, spec.operation.as_ref()?)));
    let made = serving.enumerate().map(|(no, (handler, spec, operation))| {
        let volatile: BTreeSet<String> = operation.volatile.iter().cloned().collect();
        let new = NewOperation {
            source: before + no,
            handler,
            volatile: volatile.into_iter().collect(),
            keep_response: operation.keep_response,
        };
        let source = Source {
            name: spec.name.clone(),
            was: spec.was.clone(),
            // Its rules are numbered when it is registered.
            provider: Arc::new(operation::Operation::new(Vec::new(), 0, operation.keep_key)),
            secrets: Vec::new(),
            accept_modes: None,
            on_conflict: OnConflict::Reject,
        };
        (source, new)
    });
    made.unzip()
}

/// Gives the sources of operations their rules.
pub(super) fn with_rules(sources: &mut [Source], operations: &[NewOperation], rules: Vec<Rules>) {
    for (operation, rules) in operations.iter().zip(rules) {
        if let Some(source) = sources.get_mut(operation.source) {
            let keep_key = source.provider.keep_key();
            source.provider = Arc::new(operation::Operation::new(
                rules.all,
                rules.current,
                keep_key,
            ));
        }
    }
}
