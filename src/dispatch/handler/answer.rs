//! What a `sql` handler's jsonb answer means.

use std::time::Duration;

use serde_json::Value;

use crate::domain::Verdict;
use crate::telemetry::{clean, clean_resource};

use super::error_text::mask;

/// Reads the answer: NULL or no `result` is done.
///
/// `{"result": "done" | "failed" | "skip" | "retry" | "not_yet", "reason": text, "after_s": seconds,
/// "resource": text}`. What a `retry` or `not_yet` try wrote was rolled back with its block.
pub(super) fn verdict(answer: Option<&Value>) -> Verdict {
    let Some(answer) = answer else {
        return Verdict::Done { resource: None };
    };
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
    let resource = || Some(clean_resource(&text("resource")?).into_owned());
    let reason = || {
        clean(&mask(
            &text("reason").unwrap_or_else(|| "no reason given".to_owned()),
        ))
        .into_owned()
    };
    match answer.get("result").map(Value::as_str) {
        None | Some(Some("done")) => Verdict::Done { resource: resource() },
        Some(Some("failed")) => Verdict::Failed { reason: reason() },
        Some(Some("skip")) => Verdict::Skip { reason: reason() },
        Some(Some("retry")) => Verdict::Retry { after: after(answer), error: reason() },
        Some(Some("not_yet")) => Verdict::NotYet { after: after(answer), reason: reason() },
        Some(_) => Verdict::Permanent {
            error: "the handler's answer has an unknown \"result\"; it must be done, failed, skip, retry or not_yet".to_owned(),
        },
    }
}

fn after(answer: &Value) -> Option<Duration> {
    let seconds = answer.get("after_s")?.as_f64()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn answers_mean_what_is_documented() {
        assert_eq!(verdict(None), Verdict::Done { resource: None });
        assert_eq!(
            verdict(Some(&json!({"note": 1}))),
            Verdict::Done { resource: None }
        );
        assert_eq!(
            verdict(Some(&json!({"result": "done", "resource": "booking 7"}))),
            Verdict::Done {
                resource: Some("booking 7".into())
            }
        );
        assert_eq!(
            verdict(Some(
                &json!({"result": "retry", "after_s": 2.5, "reason": "later"})
            )),
            Verdict::Retry {
                after: Some(Duration::from_millis(2_500)),
                error: "later".into()
            }
        );
        assert_eq!(
            verdict(Some(&json!({"result": "failed", "reason": "no"}))),
            Verdict::Failed {
                reason: "no".into()
            }
        );
        for odd in [
            json!({"result": "donee"}),
            json!({"result": 1}),
            json!({"result": null}),
        ] {
            assert!(
                matches!(verdict(Some(&odd)), Verdict::Permanent { .. }),
                "{odd}"
            );
        }
    }

    fn any_answer() -> impl Strategy<Value = Value> {
        let scalar = || {
            prop_oneof![
                Just(Value::Null),
                any::<bool>().prop_map(Value::from),
                any::<f64>().prop_map(Value::from),
                any::<i64>().prop_map(Value::from),
                "(done|failed|skip|retry|not_yet|Done|[a-z]{0,3})".prop_map(Value::from),
            ]
        };
        let members = ["result", "reason", "resource", "after_s", "note"]
            .map(|name| prop::option::of(scalar().prop_map(move |value| (name, value))));
        prop_oneof![
            8 => members.prop_map(|members| {
                Value::Object(members.into_iter().flatten().map(|(n, v)| (n.to_owned(), v)).collect())
            }),
            1 => scalar(),
        ]
    }

    proptest! {
        #[test]
        fn any_answer_means_what_the_table_says(answer in any_answer()) {
            let text = |name: &str| answer.get(name).and_then(|v| v.as_str().map(str::to_owned));
            match (answer.get("result"), verdict(Some(&answer))) {
                (None, given) => prop_assert_eq!(given, Verdict::Done { resource: text("resource") }),
                (Some(said), given) => match said.as_str() {
                    Some("done") => prop_assert_eq!(given, Verdict::Done { resource: text("resource") }),
                    Some("failed") => prop_assert!(matches!(given, Verdict::Failed { .. }), "{:?}", given),
                    Some("skip") => prop_assert!(matches!(given, Verdict::Skip { .. }), "{:?}", given),
                    Some("retry" | "not_yet") => {
                        let seconds = answer.get("after_s").and_then(Value::as_f64);
                        let after = match (said.as_str(), given) {
                            (Some("retry"), Verdict::Retry { after, .. })
                            | (Some("not_yet"), Verdict::NotYet { after, .. }) => after,
                            (_, given) => panic!("{given:?}"),
                        };
                        // A wish that is no length of time is no wish; 2^64 s fit no `Duration`.
                        let wished = seconds.filter(|s| (0.0..18_446_744_073_709_551_616.0).contains(s));
                        prop_assert_eq!(after.is_some(), wished.is_some());
                        if let (Some(after), Some(wished)) = (after, wished) {
                            prop_assert!((after.as_secs_f64() - wished).abs() <= wished * 1e-9 + 1e-9);
                        }
                    }
                    _ => prop_assert!(matches!(given, Verdict::Permanent { .. }), "{:?}", given),
                },
            }
        }
    }
}
