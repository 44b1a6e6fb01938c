//! One registered sender.

use std::sync::Arc;

use crate::domain::{Item, Mode, Reading, Secret};

use super::Provider;

/// What a provider is told when a known key comes with other content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnConflict {
    /// 200: a retry cannot mend it; the conflict is recorded and alerted.
    #[default]
    Ack,
    /// 409.
    Reject,
}

/// A source at work: its preset, its living secrets, its rules.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name in the URL.
    pub name: String,
    /// Former name, so that its events and keys stay its own.
    pub was: Option<String>,
    /// The preset with its options.
    pub provider: Arc<dyn Provider>,
    /// Decoded secrets.
    pub secrets: Vec<Secret>,
    /// Modes whose events are run; `None` = every mode that can be read.
    pub accept_modes: Option<Vec<Mode>>,
    /// Answer to a conflict.
    pub on_conflict: OnConflict,
}

impl Source {
    /// Turns items of a mode the source does not accept into ignored ones. An unknown mode is
    /// never accepted: it is stored and listed, not run.
    pub fn apply_modes(&self, items: &mut [Item]) {
        for item in items.iter_mut().filter(|i| i.reading == Reading::Event) {
            let accepted = match (item.mode, &self.accept_modes) {
                (None, Some(_)) | (Some(Mode::Unknown), _) => false,
                (_, None) => true,
                (Some(mode), Some(modes)) => modes.contains(&mode),
            };
            if !accepted {
                item.reading = Reading::Ignored("mode not accepted by this source");
            }
        }
    }
}
