//! Everything that is wrong with a configuration, said at once.

use std::cell::RefCell;
use std::fmt;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of the file, from 1.
    Line(usize),
    /// An environment variable.
    Variable(String),
    /// The file as a whole, or the compiled-in defaults.
    File,
}

/// One thing to mend. Never holds the value of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it is written.
    pub origin: Origin,
    /// What it belongs to: `source "shop", secret "a"`, `[limits]`.
    pub place: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Line(line) => write!(f, "line {line}: ")?,
            Origin::Variable(name) => write!(f, "{name}: ")?,
            Origin::File => {}
        }
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.message)
    }
}

/// Collects problems while the whole configuration is read.
#[derive(Debug, Default)]
pub(super) struct Problems {
    errors: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    /// Every key a reader has asked for, so that a test can hold the documentation against it.
    asked: RefCell<std::collections::BTreeSet<&'static str>>,
}

impl Problems {
    pub(super) fn error(&self, origin: &Origin, place: &str, message: impl Into<String>) {
        self.errors
            .borrow_mut()
            .push(problem(origin, place, message));
    }

    pub(super) fn warning(&self, origin: &Origin, place: &str, message: impl Into<String>) {
        self.warnings
            .borrow_mut()
            .push(problem(origin, place, message));
    }

    pub(super) fn asked(&self, key: &'static str) {
        self.asked.borrow_mut().insert(key);
    }

    #[cfg(test)]
    pub(super) fn all_asked(&self) -> Vec<&'static str> {
        self.asked.borrow().iter().copied().collect()
    }

    pub(super) fn any(&self) -> bool {
        !self.errors.borrow().is_empty()
    }

    /// Errors and warnings in the order of the file.
    pub(super) fn into_parts(self) -> (Vec<Problem>, Vec<Problem>) {
        let in_order = |mut list: Vec<Problem>| {
            list.sort_by_key(|p| match p.origin {
                Origin::Line(line) => line,
                Origin::Variable(_) => usize::MAX - 1,
                Origin::File => usize::MAX,
            });
            list
        };
        (
            in_order(self.errors.into_inner()),
            in_order(self.warnings.into_inner()),
        )
    }
}

fn problem(origin: &Origin, place: &str, message: impl Into<String>) -> Problem {
    Problem {
        origin: origin.clone(),
        place: place.to_owned(),
        message: message.into(),
    }
}

/// The name nearest to a mistyped one, if any is near enough to be meant.
pub(super) fn nearest<'a>(
    written: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (distance(written, name), name))
        .filter(|(distance, name)| *distance <= (name.len().max(written.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Edit distance over bytes, letter case ignored: insert, delete, replace, swap two neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_ascii_lowercase(), b.to_ascii_lowercase());
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let cell = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX - 1);
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = cell(&row, j) + usize::from(x != y);
            let mut best = replaced.min(cell(&row, j + 1) + 1).min(cell(&next, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                best = best.min(cell(&before, j - 1) + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    cell(&row, b.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "ABC", 0),
            ("abc", "abd", 1),
            ("abc", "ab", 1),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("ulr", "url", 1),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn only_a_near_name_is_offered() {
        let known = ["tolerance", "secrets", "name"];
        assert_eq!(nearest("tolerence", known), Some("tolerance"));
        assert_eq!(nearest("secret", known), Some("secrets"));
        assert_eq!(nearest("lane", known), None);
    }
}
