//! What a `sql` handler's jsonb answer means.

use std::time::Duration;

use serde_json::Value;

use crate::domain::Verdict;
use crate::telemetry::clean;

use super::error_text::mask;

/// Reads the answer: NULL or no `result` is done.
///
/// `{"result": "done" | "failed" | "skip" | "retry", "reason": text, "after_s": seconds,
/// "resource": text}`. What a `retry` try wrote was rolled back with its block.
pub(super) fn verdict(answer: Option<&Value>) -> Verdict {
    let Some(answer) = answer else {
        return Verdict::Done { resource: None };
    };
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
    let reason = || {
        clean(&mask(
            &text("reason").unwrap_or_else(|| "no reason given".to_owned()),
        ))
        .into_owned()
    };
    match answer.get("result").map(Value::as_str) {
        None | Some(Some("done")) => Verdict::Done { resource: text("resource") },
        Some(Some("failed")) => Verdict::Failed { reason: reason() },
        Some(Some("skip")) => Verdict::Skip { reason: reason() },
        Some(Some("retry")) => Verdict::Retry { after: after(answer), error: reason() },
        Some(_) => Verdict::Permanent {
            error: "the handler's answer has an unknown \"result\"; it must be done, failed, skip or retry".to_owned(),
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
}
