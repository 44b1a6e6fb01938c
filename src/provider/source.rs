//! One registered sender.

use std::sync::Arc;

use crate::domain::{Item, Mode, Reading, Secret, SecretText};

use super::{Options, Provider, SettingError, build};

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
    /// A source with a preset as it comes: secrets given as (label, text), every mode accepted,
    /// conflicts acknowledged. The fields are open to change.
    ///
    /// # Errors
    ///
    /// [`SettingError`] for an unknown preset, for one that needs options, and for a secret that
    /// the configuration would not take either: empty, shorter than 16 bytes, not in the preset's
    /// form.
    ///
    /// # Examples
    ///
    /// ```
    /// use oncehook::Source;
    ///
    /// let source = Source::new("stripe-main", "stripe", &[("a", "whsec_k3Jq9vXw2LmT8rZp5NcB7yHd")])?;
    /// assert_eq!(source.provider.name(), "stripe");
    /// assert!(Source::new("stripe-main", "stripe", &[("a", "whsec_short")]).is_err());
    /// assert!(Source::new("stripe-main", "stripe", &[]).is_err());
    /// # Ok::<(), oncehook::provider::SettingError>(())
    /// ```
    pub fn new(name: &str, preset: &str, secrets: &[(&str, &str)]) -> Result<Self, SettingError> {
        let provider = build(preset, &Options::default())?;
        if secrets.is_empty() {
            return Err(SettingError(format!("source {name:?} needs a secret")));
        }
        let secrets = secrets
            .iter()
            .map(|(label, text)| {
                Ok(Secret {
                    label: (*label).to_owned(),
                    key: provider.key(&SecretText::new(*text), true)?,
                    until: None,
                })
            })
            .collect::<Result<_, SettingError>>()?;
        Ok(Self {
            name: name.to_owned(),
            was: None,
            provider,
            secrets,
            accept_modes: None,
            on_conflict: OnConflict::default(),
        })
    }

    /// Turns items of a mode the source does not accept into ignored ones. An unknown mode is
    /// never accepted: it is stored and listed, not run.
    pub fn apply_modes(&self, items: &mut [Item]) {
        for item in items.iter_mut().filter(|i| i.reading == Reading::Event) {
            let accepted = match (item.mode, &self.accept_modes) {
                (Some(Mode::Unknown), _) | (None, Some(_)) => false,
                (_, None) => true,
                (Some(mode), Some(modes)) => modes.contains(&mode),
            };
            if !accepted {
                item.reading = Reading::Ignored("mode not accepted by this source");
            }
        }
    }
}
