//! Durations ("5m") and sizes ("1MiB") as people write them.

use std::time::Duration;

use crate::dispatch::rules::{LONGEST, RATE};
use crate::domain::Rate;

const DURATION_UNITS: [(&str, u64); 6] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("w", 604_800_000),
];

const SIZE_UNITS: [(&str, u64); 4] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// Reads a duration: a whole number and one of `ms s m h d w`.
///
/// # Errors
///
/// A sentence that shows the form.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use oncehook::config::units;
///
/// assert_eq!(units::duration("90s"), Ok(Duration::from_secs(90)));
/// assert!(units::duration("90").is_err());
/// ```
pub fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    match read(text, &DURATION_UNITS).map(Duration::from_millis) {
        Some(duration) if duration <= LONGEST => Ok(duration),
        Some(_) => Err(format!("{text:?} is longer than ten years")),
        None => Err(format!(
            "{text:?} is not a duration: write a whole number and a unit, such as \"500ms\", \"30s\", \"5m\", \"6h\" or \"3d\""
        )),
    }
}

/// Reads a size in bytes: a whole number and one of `B KiB MiB GiB`.
///
/// # Errors
///
/// A sentence that shows the form.
pub fn size(text: &str) -> Result<u64, String> {
    read(text, &SIZE_UNITS).ok_or_else(|| {
        format!(
            "{text:?} is not a size: write a whole number and a unit, such as \"64KiB\", \"1MiB\" or \"512B\""
        )
    })
}

/// Reads a rate: a whole number from 1, and `/s`, `/min` or `/h`.
///
/// # Errors
///
/// A sentence that shows the form.
pub fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || {
        format!(
            "{text:?} is not a rate: write a whole number from 1 to {} and a time, such as \"100/s\", \"600/min\" or \"1000/h\"",
            RATE.end()
        )
    };
    let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
    let per = match unit {
        "s" => Duration::from_secs(1),
        "min" => Duration::from_mins(1),
        "h" => Duration::from_hours(1),
        _ => return Err(wrong()),
    };
    let digits = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
    let count: u32 = digits
        .then(|| count.parse().ok())
        .flatten()
        .ok_or_else(wrong)?;
    if !RATE.contains(&count.into()) {
        return Err(wrong());
    }
    Ok(Rate { count, per })
}

/// A rate in the form [`rate`] reads.
pub fn show_rate(rate: Rate) -> String {
    let unit = match rate.per.as_secs() {
        1 => "s",
        60 => "min",
        _ => "h",
    };
    format!("{}/{unit}", rate.count)
}

/// A duration in the form [`duration`] reads, with the largest unit that divides it.
pub fn show_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    show(millis, &DURATION_UNITS, "0s")
}

/// A size in the form [`size`] reads, with the largest unit that divides it.
pub fn show_size(bytes: u64) -> String {
    show(bytes, &SIZE_UNITS, "0B")
}

fn read(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let factor = units.iter().find(|(name, _)| *name == unit)?.1;
    number.parse::<u64>().ok()?.checked_mul(factor)
}

fn show(value: u64, units: &[(&str, u64)], zero: &str) -> String {
    if value == 0 {
        return zero.to_owned();
    }
    units
        .iter()
        .rev()
        .find(|(_, factor)| value.is_multiple_of(*factor))
        .map_or_else(String::new, |(unit, factor)| {
            format!("{}{unit}", value / factor)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let cases = [
            ("500ms", Some(500)),
            ("30s", Some(30_000)),
            ("5m", Some(300_000)),
            ("6h", Some(21_600_000)),
            ("3d", Some(259_200_000)),
            ("2w", Some(1_209_600_000)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("", None),
            ("5", None),
            ("m", None),
            ("5 m", None),
            ("-5m", None),
            ("1.5h", None),
            ("5min", None),
            ("99999999999999999999s", None),
            ("99999999999d", None),
        ];
        for (text, millis) in cases {
            assert_eq!(
                duration(text).ok(),
                millis.map(Duration::from_millis),
                "{text:?}"
            );
        }
    }

    #[test]
    fn sizes() {
        let cases = [
            ("1MiB", Some(1_048_576)),
            ("64KiB", Some(65_536)),
            ("10B", Some(10)),
            ("1MB", None),
            ("1024", None),
            ("", None),
            ("18446744073709551615GiB", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(size(text).ok(), bytes, "{text:?}");
        }
    }

    #[test]
    fn rates() {
        for (text, count, seconds) in [("100/s", 100, 1), ("600/min", 600, 60), ("1/h", 1, 3_600)] {
            let per = Duration::from_secs(seconds);
            assert_eq!(rate(text), Ok(Rate { count, per }), "{text}");
            assert_eq!(show_rate(rate(text).unwrap()), text);
        }
        for text in [
            "",
            "100",
            "/s",
            "0/s",
            "-1/s",
            "1.5/s",
            "100/m",
            "100 /s",
            "+5/s",
            "1000001/s",
        ] {
            assert!(rate(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read_back() {
        for text in ["500ms", "90s", "5m", "6h", "3d", "1w"] {
            assert_eq!(show_duration(duration(text).unwrap()), text);
        }
        for text in ["1MiB", "64KiB", "3B", "2GiB"] {
            assert_eq!(show_size(size(text).unwrap()), text);
        }
    }
}
