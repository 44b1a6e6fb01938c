//! The request header `Prefer`: how long a client waits for its answer.

use std::time::Duration;

use super::OperationSpec;

/// What a client prefers, as far as it matters here.
///
/// # Source
///
/// RFC 7240. Of a preference that is given twice the first counts (section 2), whatever is not known
/// or not understood is passed over, and several fields are one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Preferences {
    /// `wait`, in seconds (section 4.3).
    pub wait_s: Option<u32>,
    /// `respond-async` (section 4.1).
    pub respond_async: bool,
}

/// How long a request waits, and what it is told of its preferences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patience {
    /// For the outcome.
    pub wait: Duration,
    /// The value of `Preference-Applied`, if any was.
    pub applied: Option<String>,
}

impl Preferences {
    /// Reads the fields of this name that a request has.
    pub fn of_fields<'a>(fields: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut read = Self::default();
        let mut seen_wait = false;
        for field in fields {
            for preference in elements(field, b',') {
                // Parameters of a preference say nothing here.
                let first = elements(preference, b';').next().unwrap_or_default();
                let (name, value) = pair(first);
                if name.eq_ignore_ascii_case(b"respond-async") {
                    read.respond_async = true;
                } else if name.eq_ignore_ascii_case(b"wait") && !seen_wait {
                    seen_wait = true;
                    read.wait_s = seconds(value);
                }
            }
        }
        read
    }

    /// What becomes of them at an operation: `wait=n` up to its longest, `respond-async` alone waits
    /// for nothing, with `wait=n` it says what happens after that time anyway.
    pub fn at(self, spec: &OperationSpec) -> Patience {
        self.within(spec.wait, spec.wait_max)
    }

    /// The same with the usual and the longest wait given.
    pub fn within(self, usual: Duration, longest: Duration) -> Patience {
        let asked = self.wait_s.map(|s| Duration::from_secs(s.into()));
        let wait = match (asked, self.respond_async) {
            (Some(asked), _) => asked,
            (None, true) => Duration::ZERO,
            (None, false) => usual,
        };
        let wait = wait.min(longest);
        let mut applied = Vec::new();
        if self.respond_async {
            applied.push("respond-async".to_owned());
        }
        if asked.is_some() {
            applied.push(format!("wait={}", wait.as_secs()));
        }
        Patience {
            wait,
            applied: (!applied.is_empty()).then(|| applied.join(", ")),
        }
    }
}

/// The parts between separators that do not stand inside quotes.
fn elements(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (mut inside, mut escaped) = (false, false);
        let end = text.iter().position(|byte| {
            let ends = *byte == separator && !inside;
            if inside && !escaped && *byte == b'\\' {
                escaped = true;
                return false;
            }
            if *byte == b'"' && !escaped {
                inside = !inside;
            }
            escaped = false;
            ends
        });
        let (element, behind) = text.split_at(end.unwrap_or(text.len()));
        rest = end.map(|_| behind.get(1..).unwrap_or_default());
        Some(element.trim_ascii())
    })
}

/// Name and value of `name=value`; white space around `=` is allowed and bad.
fn pair(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == b'=') {
        None => (text, b""),
        Some(at) => {
            let (name, value) = text.split_at(at);
            let value = value.get(1..).unwrap_or_default();
            (name.trim_ascii_end(), value.trim_ascii_start())
        }
    }
}

/// A number of seconds, which may stand in quotes.
fn seconds(value: &[u8]) -> Option<u32> {
    let value = value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""))
        .unwrap_or(value);
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = std::str::from_utf8(value).ok()?;
    // So many digits that it is no number of ours: longer than anything.
    Some(digits.parse().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(fields: &[&str]) -> Preferences {
        Preferences::of_fields(fields.iter().map(|field| field.as_bytes()))
    }

    fn preferences(wait_s: Option<u32>, respond_async: bool) -> Preferences {
        Preferences {
            wait_s,
            respond_async,
        }
    }

    #[test]
    fn what_is_understood_is_read_and_the_rest_passed_over() {
        for (fields, wait_s, respond_async) in [
            (&[][..], None, false),
            (&[""], None, false),
            (&["wait=10"], Some(10), false),
            (&["Wait = 10"], Some(10), false),
            (&["wait=\"10\""], Some(10), false),
            (&["wait=0"], Some(0), false),
            (&["respond-async"], None, true),
            (&["RESPOND-ASYNC, wait=3"], Some(3), true),
            (&["wait=3", "respond-async"], Some(3), true),
            (
                &["handling=lenient; a=\"x, wait=1\", wait=2"],
                Some(2),
                false,
            ),
            (&["respond-async; foo=bar, return=minimal"], None, true),
            (&["wait=1, wait=2"], Some(1), false),
            (&["wait=1", "wait=2"], Some(1), false),
            // The first one counts, and is none.
            (&["wait=soon, wait=2"], None, false),
            (&["wait"], None, false),
            (&["wait=-1"], None, false),
            (&["wait=1.5"], None, false),
            (&["wait=99999999999999999999"], Some(u32::MAX), false),
            (&["waiting=5, xwait=5"], None, false),
            (&["foo=\"wait=5"], None, false),
            (&[",, ,wait=4,"], Some(4), false),
        ] {
            let expected = preferences(wait_s, respond_async);
            assert_eq!(read(fields), expected, "{fields:?}");
        }
    }

    #[test]
    fn a_wait_is_bounded_and_what_was_applied_is_said() {
        let (usual, longest) = (Duration::from_secs(5), Duration::from_mins(1));
        for (wait_s, respond_async, waits_s, applied) in [
            (None, false, 5, None),
            (Some(9), false, 9, Some("wait=9")),
            (Some(0), false, 0, Some("wait=0")),
            (Some(600), false, 60, Some("wait=60")),
            (None, true, 0, Some("respond-async")),
            (Some(9), true, 9, Some("respond-async, wait=9")),
        ] {
            let patience = preferences(wait_s, respond_async).within(usual, longest);
            assert_eq!(patience.wait, Duration::from_secs(waits_s));
            assert_eq!(patience.applied.as_deref(), applied);
        }
    }

    proptest! {
        #[test]
        fn no_field_panics_and_none_waits_longer_than_may_be(
            fields in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..4)
        ) {
            let read = Preferences::of_fields(fields.iter().map(Vec::as_slice));
            let longest = Duration::from_secs(7);
            prop_assert!(read.within(Duration::from_secs(3), longest).wait <= longest);
        }

        #[test]
        fn a_wait_is_found_wherever_it_stands(
            before in "(([a-z]{1,3}(=\"[a-z, ;=]{0,6}\")?;?)?,){0,3}", s in 0_u32..100_000, after in "(,[a-z=]{0,4}){0,3}"
        ) {
            prop_assert_eq!(read(&[&format!("{before} wait={s}{after}")]).wait_s, Some(s));
        }
    }
}
