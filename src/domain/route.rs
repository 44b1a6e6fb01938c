//! Which handlers take an event.

use std::collections::BTreeMap;

use super::{Lane, LaneBy, LaneSource, Priorities, Priority};

/// One entry of a handler's `events`: `source:type`, where each side may hold `*`.
///
/// `*` stands for any run of characters, so `payment_intent.*` takes
/// `payment_intent.succeeded`. A type without a value matches only `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    source: String,
    event_type: String,
}

/// Why a pattern is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an event pattern: write \"source:type\", for example \"stripe-main:payment_intent.*\" or \"*:*\""
)]
pub struct PatternError(String);

impl Pattern {
    /// Reads `source:type`.
    ///
    /// # Errors
    ///
    /// [`PatternError`] when there is no `:` or one side is empty.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        match text.split_once(':') {
            Some((source, event_type)) if !source.is_empty() && !event_type.is_empty() => {
                Ok(Self {
                    source: source.to_owned(),
                    event_type: event_type.to_owned(),
                })
            }
            _ => Err(PatternError(text.to_owned())),
        }
    }

    /// The source side, for checking that such a source exists.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the pattern takes this event.
    pub fn takes(&self, source: &str, event_type: Option<&str>) -> bool {
        glob(&self.source, source) && glob(&self.event_type, event_type.unwrap_or(""))
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.source, self.event_type)
    }
}

/// Matches `*` runs without recursion and without a blow-up on hostile input.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(byte) if Some(byte) == text.get(t) => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    p = at + 1;
                    t = from + 1;
                    star = Some((at, t));
                }
                None => return false,
            },
        }
    }
    pattern
        .get(p..)
        .is_some_and(|rest| rest.iter().all(|b| *b == b'*'))
}

/// Where an event goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Registry id of the handler.
    pub handler: i32,
    /// How soon it is its turn.
    pub priority: Priority,
    /// Where the event waits for its turn there; `None`: it waits for no other.
    pub lane: Option<Lane>,
}

/// What a handler takes, and how.
#[derive(Debug, Clone, Default)]
pub struct Taking {
    /// Which events.
    pub events: Vec<Pattern>,
    /// How soon it is their turn.
    pub priorities: Priorities,
    /// Which of them wait for one another.
    pub lane: Option<LaneBy>,
}

/// The fan-out table: handler id to what it takes.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    handlers: BTreeMap<i32, Taking>,
}

impl Routes {
    /// Builds the table.
    pub fn new(handlers: impl IntoIterator<Item = (i32, Taking)>) -> Self {
        Self {
            handlers: handlers.into_iter().collect(),
        }
    }

    /// The handlers that take the event, by ascending id.
    pub fn of(&self, source: &str, event_type: Option<&str>, event: LaneSource<'_>) -> Vec<Route> {
        let takes = |taking: &Taking| taking.events.iter().any(|p| p.takes(source, event_type));
        self.handlers
            .iter()
            .filter(|(_, taking)| takes(taking))
            .map(|(id, taking)| Route {
                handler: *id,
                priority: taking.priorities.of(source, event_type),
                lane: taking.lane.as_ref().and_then(|by| by.lane(event)),
            })
            .collect()
    }
}

impl Routes {
    /// The one way of an event to this handler, whatever patterns say: of an operation, which goes nowhere else.
    pub fn only(
        &self,
        handler: i32,
        source: &str,
        event_type: Option<&str>,
        event: LaneSource<'_>,
    ) -> Vec<Route> {
        let route = self.handlers.get(&handler).map(|taking| Route {
            handler,
            priority: taking.priorities.of(source, event_type),
            lane: taking.lane.as_ref().and_then(|by| by.lane(event)),
        });
        route.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_take_what_they_say() {
        let cases = [
            (
                "stripe:payment_intent.*",
                "stripe",
                Some("payment_intent.succeeded"),
                true,
            ),
            (
                "stripe:payment_intent.*",
                "stripe",
                Some("payment_intent."),
                true,
            ),
            (
                "stripe:payment_intent.*",
                "stripe",
                Some("charge.succeeded"),
                false,
            ),
            (
                "stripe:payment_intent.*",
                "stripe-2",
                Some("payment_intent.x"),
                false,
            ),
            ("*:*", "any", None, true),
            ("*:order.paid", "any", None, false),
            ("*:*.paid", "shop", Some("order.paid"), true),
            ("*:*.paid", "shop", Some("order.paid.late"), false),
            ("*:a*b*c", "shop", Some("axxbyyc"), true),
            ("*:a*b*c", "shop", Some("axxbyy"), false),
        ];
        for (pattern, source, event_type, expected) in cases {
            let parsed = Pattern::parse(pattern).unwrap();
            assert_eq!(
                parsed.takes(source, event_type),
                expected,
                "{pattern} {source} {event_type:?}"
            );
        }
    }

    /// `*` by trying every split.
    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some((b'*', rest)), _) => (0..=text.len()).any(|n| naive(rest, &text[n..])),
            (Some((byte, rest)), Some((first, tail))) => byte == first && naive(rest, tail),
            (Some(_), None) => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn patterns_match_as_the_naive_reference_does(
            source in "[ab*]{1,5}", kind in "[ab.:*]{1,6}", from in "[ab*]{0,6}", of in prop::option::of("[ab.:]{0,8}")
        ) {
            let pattern = Pattern::parse(&format!("{source}:{kind}")).unwrap();
            let expected = naive(source.as_bytes(), from.as_bytes())
                && naive(kind.as_bytes(), of.as_deref().unwrap_or("").as_bytes());
            prop_assert_eq!(pattern.takes(&from, of.as_deref()), expected);
            let taking = |lane| Taking { events: vec![pattern.clone()], lane, ..Taking::default() };
            let routes = Routes::new([(2, taking(Some(LaneBy::Entity))), (1, taking(None))]);
            let event = LaneSource { entity: Some("e"), account: None, body: b"" };
            let to = |handler, lane| Route { handler, priority: Priority::Normal, lane };
            let taken = vec![to(1, None), to(2, Lane::of("e"))];
            prop_assert_eq!(routes.of(&from, of.as_deref(), event), if expected { taken } else { vec![] });
        }
    }

    #[test]
    fn a_hostile_pattern_costs_no_more_than_its_length_times_the_texts() {
        // By trying every split this would not end in a lifetime.
        let pattern = Pattern::parse(&format!("*:{}b", "a*".repeat(40))).unwrap();
        assert!(!pattern.takes("shop", Some(&"a".repeat(4_000))));
    }

    #[test]
    fn patterns_without_both_sides_are_refused() {
        for text in ["", "stripe", ":x", "stripe:", ":"] {
            assert!(Pattern::parse(text).is_err(), "{text:?}");
        }
    }
}
