//! The query of an event list; what it does not know it refuses.

use actix_web::http::StatusCode;
use actix_web::web::Query;

use crate::store::query::EventFilter;

use super::problem::Problem;

/// States an event can be asked for by.
const STATES: [&str; 9] = [
    "unreadable",
    "ignored",
    "unrecognized",
    "uncertain",
    "held",
    "pending",
    "dead",
    "failed",
    "succeeded",
];

const LIMIT_DEFAULT: u16 = 50;
const LIMIT_MAX: u16 = 500;

/// Reads the filter. A misspelt parameter must not quietly mean "everything".
pub(super) fn parse(query: &str) -> Result<EventFilter, Problem> {
    let pairs = Query::<Vec<(String, String)>>::from_query(query)
        .map_err(|_| invalid("The query is not in the form name=value&name=value.".to_owned()))?;
    let mut seen: Vec<String> = Vec::new();
    let mut filter = EventFilter {
        limit: LIMIT_DEFAULT,
        ..EventFilter::default()
    };
    for (name, value) in pairs.into_inner() {
        if seen.contains(&name) {
            return Err(invalid(format!("{} is given twice.", shown(&name))));
        }
        if value.contains('\0') {
            return Err(invalid(format!("{} holds NUL.", shown(&name))));
        }
        set(&mut filter, &name, value)?;
        seen.push(name);
    }
    Ok(filter)
}

fn set(filter: &mut EventFilter, name: &str, value: String) -> Result<(), Problem> {
    match name {
        "source" => filter.source = Some(value),
        "type" => filter.event_type = Some(value),
        "state" if STATES.contains(&value.as_str()) => filter.state = Some(value),
        "state" => {
            return Err(invalid(format!("state is one of {}.", STATES.join(", "))));
        }
        "before" => {
            let before = value.parse().map_err(|_| {
                invalid("before is the `next` of an earlier page, an event id.".to_owned())
            })?;
            filter.before = Some(before);
        }
        "limit" => {
            filter.limit = value
                .parse()
                .ok()
                .filter(|limit| (1..=LIMIT_MAX).contains(limit))
                .ok_or_else(|| invalid(format!("limit is a number from 1 to {LIMIT_MAX}.")))?;
        }
        unknown => {
            return Err(Problem::with(
                StatusCode::BAD_REQUEST,
                "unknown-parameter",
                "Unknown parameter",
                format!(
                    "{} is not a parameter of this list; it has source, type, state, before and limit.",
                    shown(unknown)
                ),
            ));
        }
    }
    Ok(())
}

fn invalid(detail: String) -> Problem {
    Problem::with(
        StatusCode::BAD_REQUEST,
        "invalid-parameter",
        "Invalid parameter",
        detail,
    )
}

/// A name as given, fit to be shown: short and without control characters.
fn shown(name: &str) -> String {
    let start: String = name.chars().take(40).collect();
    format!("`{}`", start.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_read() {
        let query = "source=stripe-main&type=payment_intent.*&state=dead\
                     &before=0190f5e4-0000-7000-8000-000000000000&limit=500";
        let filter = parse(query).unwrap();
        assert_eq!(filter.source.as_deref(), Some("stripe-main"));
        assert_eq!(filter.event_type.as_deref(), Some("payment_intent.*"));
        assert_eq!(filter.state.as_deref(), Some("dead"));
        assert!(filter.before.is_some());
        assert_eq!(filter.limit, 500);
        let all = parse("").unwrap();
        assert_eq!((all.limit, all.source), (LIMIT_DEFAULT, None));
        let encoded = parse("type=a%2Fb+c").unwrap();
        assert_eq!(encoded.event_type.as_deref(), Some("a/b c"));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for query in [
            "sorce=x",
            "limit=0",
            "limit=501",
            "limit=many",
            "state=done",
            "before=yesterday",
            "source=a&source=b",
            "Source=a",
            "source=%00",
        ] {
            assert!(parse(query).is_err(), "{query}");
        }
        let problem = parse("sorce=x").unwrap_err();
        assert!(format!("{problem:?}").contains("`sorce`"));
    }
}
