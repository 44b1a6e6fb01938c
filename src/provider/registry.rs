//! From a name in the configuration to a preset bound to its options.

use std::sync::Arc;

use super::presets::TABLE;
use super::{Options, Provider, SettingError, adyen, hmac, internal};

/// Every name that `provider = "..."` takes for a sender; beside them there is `internal`.
pub const NAMES: [&str; 5] = ["stripe", "adyen", "standard-webhooks", "github", "hmac"];

/// What `oncehook providers` says about one dialect of a preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresetInfo {
    /// Name in the configuration.
    pub name: &'static str,
    /// Value of `dialect`, `None` for the usual one.
    pub dialect: Option<&'static str>,
    /// The scheme in one line.
    pub about: &'static str,
    /// What the signature covers, and what it does not.
    pub covers: &'static str,
}

/// Every preset and dialect, in the order of [`NAMES`].
pub fn list() -> Vec<PresetInfo> {
    let mut all: Vec<PresetInfo> = TABLE
        .iter()
        .map(|entry| PresetInfo {
            name: entry.name,
            dialect: entry.dialect,
            about: entry.about,
            covers: entry.covers,
        })
        .collect();
    all.push(PresetInfo {
        name: adyen::NAME,
        dialect: None,
        about: adyen::ABOUT,
        covers: adyen::COVERS,
    });
    all.push(PresetInfo {
        name: hmac::NAME,
        dialect: None,
        about: hmac::ABOUT,
        covers: hmac::COVERS,
    });
    all.sort_by_key(|info| {
        let place = NAMES.iter().position(|name| *name == info.name);
        (place, info.dialect)
    });
    all
}

/// Binds a preset to the options of a source.
///
/// # Errors
///
/// [`SettingError`] for an unknown name or dialect, and for an option that this preset does not
/// know, cannot keep or still needs; the text names it.
///
/// # Examples
///
/// ```
/// use oncehook::provider::{self, Options};
///
/// let stripe = provider::build("stripe", &Options::default())?;
/// assert_eq!(stripe.name(), "stripe");
///
/// let options = Options { public_url: Some("https://x.test/".into()), ..Options::default() };
/// assert!(provider::build("stripe", &options).unwrap_err().to_string().contains("public_url"));
/// # Ok::<(), oncehook::provider::SettingError>(())
/// ```
pub fn build(name: &str, options: &Options) -> Result<Arc<dyn Provider>, SettingError> {
    if name == internal::NAME {
        return if *options == Options::default() {
            Ok(Arc::new(internal::Internal))
        } else {
            Err(SettingError(
                "an internal source has no options: its events are emitted in the database"
                    .to_owned(),
            ))
        };
    }
    if !NAMES.contains(&name) {
        return Err(SettingError(format!(
            "no provider is called {name:?}; there are {}",
            NAMES.join(", ")
        )));
    }
    if name != hmac::NAME && options.hmac.is_some() {
        return Err(SettingError(format!(
            "`hmac` belongs to provider = \"hmac\", not to {name:?}"
        )));
    }
    let dialect = options.dialect.as_deref();
    match (name, dialect) {
        (adyen::NAME, None) => Ok(Arc::new(adyen::Standard::new(options)?)),
        (hmac::NAME, None) => match &options.hmac {
            Some(scheme) => hmac::declare(scheme)?.bind(options),
            None => Err(SettingError(
                "the provider \"hmac\" needs its scheme in [source.hmac]".to_owned(),
            )),
        },
        _ => TABLE
            .iter()
            .find(|entry| entry.name == name && entry.dialect == dialect)
            .ok_or_else(|| unknown_dialect(name, dialect.unwrap_or_default()))?
            .clone()
            .bind(options),
    }
}

fn unknown_dialect(name: &str, dialect: &str) -> SettingError {
    let known: Vec<&str> = list()
        .iter()
        .filter(|info| info.name == name)
        .filter_map(|info| info.dialect)
        .collect();
    SettingError(if known.is_empty() {
        format!("`dialect` = {dialect:?}: {name:?} has no dialects")
    } else {
        format!(
            "`dialect` = {dialect:?}: {name:?} knows {}",
            known.join(", ")
        )
    })
}
