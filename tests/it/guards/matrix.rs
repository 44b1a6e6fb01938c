//! The crash matrix in `docs/guarantees.md` against the tests and the guards.

use std::collections::BTreeMap;
use std::fs;

use super::{guards, root, tests};

/// Rows that come with a capability that is not there yet.
const LATER: [u32; 8] = [36, 37, 38, 39, 40, 41, 42, 43];

/// The last row.
const ROWS: u32 = 54;

/// Row number to the tests it names.
fn matrix() -> BTreeMap<u32, Vec<String>> {
    let page = fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let (_, table) = page
        .split_once("| # | Crash or cut")
        .expect("the crash matrix");
    table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [number, _, _, _, _, tests] = cells.as_slice() else {
                panic!("six cells, with no | inside: {line}");
            };
            let tests = tests.split('`').skip(1).step_by(2).map(str::to_owned);
            (number.parse().unwrap(), tests.collect())
        })
        .collect()
}

#[test]
fn every_row_of_the_crash_matrix_has_tests_that_exist() {
    let (matrix, known) = (matrix(), tests());
    let expected: Vec<u32> = (1..=ROWS).filter(|row| !LATER.contains(row)).collect();
    assert_eq!(matrix.keys().copied().collect::<Vec<_>>(), expected);
    let mut wrong = Vec::new();
    for (row, tests) in &matrix {
        if tests.is_empty() {
            wrong.push(format!("{row}: no test"));
        }
        for test in tests.iter().filter(|test| !known.contains(*test)) {
            wrong.push(format!("{row}: no such test: {test}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_row_has_a_guard_and_a_guard_shows_its_row_by_a_test_of_it() {
    let mut matrix = matrix();
    let tests = matrix.clone();
    for guard in guards() {
        for row in &guard.rows {
            let tests = tests.get(row).map(Vec::as_slice).unwrap_or_default();
            assert!(tests.contains(&guard.test), "{}: row {row}", guard.name);
            matrix.remove(row);
        }
    }
    let without: Vec<&u32> = matrix.keys().collect();
    assert!(without.is_empty(), "rows without a guard: {without:?}");
}
