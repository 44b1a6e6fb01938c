//! A later event that names the effect key of a call, and says how it ended.
//!
//! ```text
//!   uncertain, ready, blocked --"succeeded"--> kept: the delivery ends by it, nothing is sent again
//!   uncertain --"failed", and there was no other call--> kept: the delivery ends by it
//!   leased --> kept, and looked at again when the call has ended
//!   held --"succeeded"--> kept: a person says so
//!   ended otherwise --> a contradiction: kept, alerted; the outcome stays
//! ```
//!
//! The event is the provider's word about the effect, not about one call. That it is there is true of every
//! call under the key; a "no" is told apart from that of an earlier call only where there was none.

use std::fmt;

use super::json::{Document, Kind, valid_pointer};
use super::{EffectKey, Ending};

/// Where an event has something: a JSON Pointer into its body, written `json:/..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place(String);

/// Why a text names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no place: write json: and a JSON Pointer into the event, such as \"json:/data/object/metadata/oncehook\""
)]
pub struct PlaceError(String);

impl Place {
    /// Reads `json:` and a JSON Pointer (RFC 6901).
    ///
    /// # Errors
    ///
    /// [`PlaceError`] for anything else.
    pub fn parse(text: &str) -> Result<Self, PlaceError> {
        match text.strip_prefix("json:") {
            Some(pointer) if !pointer.is_empty() && valid_pointer(pointer) => {
                Ok(Self(pointer.to_owned()))
            }
            _ => Err(PlaceError(text.to_owned())),
        }
    }

    /// The text or number that is there.
    fn text(&self, document: &Document<'_>) -> Option<String> {
        let value = document.pointer(&self.0)?;
        match value.kind() {
            Kind::String => Some(value.string()?.into_owned()),
            Kind::Number => Some(value.raw().to_owned()),
            Kind::Null | Kind::Bool | Kind::Array | Kind::Object => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "json:{}", self.0)
    }
}

/// How a call ended, by a later event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// Its effect is there.
    Succeeded,
    /// It was refused for good.
    Failed,
}

impl Word {
    /// The result that it stands for.
    pub fn ending(self) -> Ending {
        match self {
            Self::Succeeded => Ending::Succeeded,
            Self::Failed => Ending::Failed,
        }
    }

    /// The word of the configuration.
    pub fn as_str(self) -> &'static str {
        self.ending().as_str()
    }

    /// Whether a run that ended so is what the word says: nothing is there in whatever did not succeed.
    fn agrees(self, ending: Ending) -> bool {
        (self == Self::Succeeded) == (ending == Ending::Succeeded)
    }
}

/// Where an event says which call it is about, and what it says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Where the effect key is.
    pub effect_key: Place,
    /// What every such event says.
    pub word: Word,
    /// Where the id of what was made is.
    pub resource: Option<Place>,
    /// Where the provider's own id is.
    pub external_id: Option<Place>,
}

/// What an event says of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Of which.
    pub effect_key: EffectKey,
    /// The id of what was made, as the event has it.
    pub resource: Option<String>,
    /// The provider's own id, as the event has it.
    pub external_id: Option<String>,
}

/// Why an event says nothing of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Silent {
    /// Its body is no JSON.
    #[error("the event is no JSON: there is no place in it where an effect key could be")]
    NotJson,
    /// There is nothing at the place.
    #[error("the event names no effect key")]
    NoKey,
    /// What is there is none.
    #[error("what the event names is no effect key of oncehook")]
    OtherKey,
}

impl Reading {
    /// What an event says.
    ///
    /// # Errors
    ///
    /// [`Silent`]: nothing, and why.
    pub fn read(&self, body: &[u8]) -> Result<Said, Silent> {
        let document = Document::parse(body).map_err(|_| Silent::NotJson)?;
        let key = self.effect_key.text(&document).ok_or(Silent::NoKey)?;
        let at = |place: &Option<Place>| place.as_ref()?.text(&document);
        Ok(Said {
            effect_key: EffectKey::parse(&key).ok_or(Silent::OtherKey)?,
            resource: at(&self.resource),
            external_id: at(&self.external_id),
        })
    }
}

/// How the run stands whose call an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stands {
    /// A call is under way.
    Leased,
    /// The result of its call is not known.
    Uncertain,
    /// It is due, or will be, or waits in its lane; its last call is known to have done nothing.
    Waiting,
    /// It cannot go on, and waits for a person.
    Held,
    /// It has its outcome.
    Ended {
        /// Which.
        ending: Ending,
        /// It was an event that decided it, and that one told of another resource.
        of_other_resource: bool,
    },
}

/// What becomes of what an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Kept, and the delivery ends by it.
    Decides,
    /// Kept, and looked at again: the call that is under way may say otherwise.
    Waits {
        /// Whether the delivery ends by it if that call is lost.
        decides: bool,
    },
    /// Kept for whoever decides.
    Kept,
    /// Nothing that is not known already.
    Known,
    /// It contradicts the outcome: kept, and a person must look.
    Contradicts,
}

/// Decides what becomes of an event's word. Pure. `only_call`: no other call was made under its effect key.
pub fn fate(word: Word, stands: Stands, only_call: bool) -> Fate {
    let decides = word == Word::Succeeded || only_call;
    match (stands, word) {
        (Stands::Leased, _) => Fate::Waits { decides },
        (Stands::Uncertain, _) if decides => Fate::Decides,
        (Stands::Uncertain, _) | (Stands::Held, Word::Succeeded) => Fate::Kept,
        (Stands::Waiting, Word::Succeeded) => Fate::Decides,
        (Stands::Waiting | Stands::Held, Word::Failed) => Fate::Known,
        (
            Stands::Ended {
                of_other_resource: true,
                ..
            },
            _,
        ) => Fate::Contradicts,
        (Stands::Ended { ending, .. }, _) if word.agrees(ending) => Fate::Known,
        (Stands::Ended { .. }, _) => Fate::Contradicts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const KEY: &str = "ohk_9c10450054f2d0cdfb8fbc4a1f852d2954e815d4";

    fn reading() -> Reading {
        let place = |text| Place::parse(text).unwrap();
        Reading {
            effect_key: place("json:/data/object/metadata/key"),
            word: Word::Succeeded,
            resource: Some(place("json:/data/object/id")),
            external_id: Some(place("json:/data/object/number")),
        }
    }

    fn read(object: serde_json::Value) -> Result<Said, Silent> {
        reading().read(
            json!({ "data": { "object": object } })
                .to_string()
                .as_bytes(),
        )
    }

    #[test]
    fn an_event_names_the_key_the_resource_and_the_providers_id_where_the_configuration_says() {
        let said = read(
            json!({ "id": "pi_1", "number": 12_345_678_901_234_567_890_u64, "metadata": { "key": KEY } }),
        );
        assert_eq!(
            said,
            Ok(Said {
                effect_key: EffectKey::parse(KEY).unwrap(),
                resource: Some("pi_1".into()),
                external_id: Some("12345678901234567890".into()),
            })
        );
        let bare = read(json!({ "id": ["pi_1"], "metadata": { "key": KEY } })).unwrap();
        assert_eq!((bare.resource, bare.external_id), (None, None));
    }

    #[test]
    fn what_is_no_effect_key_says_nothing() {
        assert_eq!(read(json!({ "id": "pi_1" })), Err(Silent::NoKey));
        assert_eq!(
            read(json!({ "metadata": { "key": null } })),
            Err(Silent::NoKey)
        );
        for other in [
            "",
            "ohk_",
            "order 7",
            &KEY.to_uppercase(),
            &format!("{KEY}0"),
            &format!(" {KEY}"),
            &KEY.replace('9', "g"),
        ] {
            assert_eq!(
                read(json!({ "metadata": { "key": other } })),
                Err(Silent::OtherKey),
                "{other}"
            );
        }
        assert_eq!(reading().read(b"a=b"), Err(Silent::NotJson));
    }

    #[test]
    fn a_place_is_a_pointer() {
        assert_eq!(Place::parse("json:/a/0").unwrap().to_string(), "json:/a/0");
        for wrong in ["", "/a", "json:", "json:a", "json:/~2", "entity"] {
            assert!(Place::parse(wrong).is_err(), "{wrong}");
        }
    }

    const ENDINGS: [Ending; 5] = [
        Ending::Succeeded,
        Ending::Failed,
        Ending::Skipped,
        Ending::Dead,
        Ending::Cancelled,
    ];

    #[test]
    fn an_outcome_stays_and_what_says_otherwise_contradicts_it() {
        for ending in ENDINGS {
            for only_call in [false, true] {
                let stands = |of_other_resource| Stands::Ended {
                    ending,
                    of_other_resource,
                };
                let there = ending == Ending::Succeeded;
                let fates = [Word::Succeeded, Word::Failed]
                    .map(|word| fate(word, stands(false), only_call));
                let expected = if there {
                    [Fate::Known, Fate::Contradicts]
                } else {
                    [Fate::Contradicts, Fate::Known]
                };
                assert_eq!(fates, expected, "{ending:?}");
                assert_eq!(
                    fate(Word::Succeeded, stands(true), only_call),
                    Fate::Contradicts
                );
            }
        }
    }

    #[test]
    fn a_yes_is_true_of_every_call_and_a_no_of_the_only_one() {
        let open = [
            Stands::Leased,
            Stands::Uncertain,
            Stands::Waiting,
            Stands::Held,
        ];
        let of = |word, only_call| open.map(|stands| fate(word, stands, only_call));
        let yes = [
            Fate::Waits { decides: true },
            Fate::Decides,
            Fate::Decides,
            Fate::Kept,
        ];
        assert_eq!(of(Word::Succeeded, true), yes);
        assert_eq!(of(Word::Succeeded, false), yes);
        assert_eq!(
            of(Word::Failed, true),
            [
                Fate::Waits { decides: true },
                Fate::Decides,
                Fate::Known,
                Fate::Known
            ]
        );
        assert_eq!(
            of(Word::Failed, false),
            [
                Fate::Waits { decides: false },
                Fate::Kept,
                Fate::Known,
                Fate::Known
            ]
        );
    }
}
