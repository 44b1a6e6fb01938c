//! `docs/faults.md` lists every fault once, and every test it names is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// How many faults are numbered.
const FAULTS: usize = 87;

/// What may bring a fault's answer later, in the words of the table.
const LATER: [&str; 5] = [
    "operations",
    "provider catalogue",
    "running for years",
    "proof",
    "the handbook",
];

/// Names of the functions under a folder.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            names.extend(text.lines().filter_map(|line| {
                let (before, after) = line.split_once("fn ")?;
                let words = before.trim();
                let is_function = words.is_empty() || words == "async" || words.starts_with("pub");
                let name = after.split('(').next()?;
                is_function.then(|| name.trim().to_owned())
            }));
        }
    }
}

/// Whether a test's name begins with this number, alone or among others (`f3_f7_..`).
fn is_numbered(name: &str, number: &str) -> bool {
    name.split('_')
        .take_while(|word| {
            word.strip_prefix('f')
                .is_some_and(|digits| digits.parse::<u32>().is_ok())
        })
        .any(|word| word == number)
}

/// Whether a cell's entry, a name or `f39_*`, is borne out by the sources.
fn exists(entry: &str, names: &BTreeSet<String>) -> bool {
    match entry.strip_suffix("_*") {
        Some(number) => names.iter().any(|name| is_numbered(name, number)),
        None => names.contains(entry),
    }
}

#[test]
fn every_fault_has_its_row_and_every_test_named_there_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = BTreeSet::new();
    for folder in ["src", "tests"] {
        functions(&root.join(folder), &mut names);
    }
    let page = fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let mut numbers = Vec::new();
    let mut missing = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| F")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [number, fault, tests, later] = cells.as_slice() else {
            panic!("four cells, with no | inside: {row}");
        };
        assert!(!fault.is_empty(), "{row}");
        numbers.push((*number).to_owned());
        let entries: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        missing.extend(
            entries
                .iter()
                .filter(|entry| !exists(entry, &names))
                .map(|entry| format!("{number}: {entry}")),
        );
        assert!(
            !entries.is_empty() || LATER.iter().any(|word| later.contains(word)),
            "neither a test nor what will bring it: {row}"
        );
        assert!(
            later.is_empty() || LATER.iter().any(|word| later.contains(word)),
            "unknown capability: {row}"
        );
    }
    let expected: Vec<String> = (1..=FAULTS).map(|number| format!("F{number}")).collect();
    assert_eq!(numbers, expected, "each number once, in order");
    assert!(missing.is_empty(), "tests that do not exist: {missing:#?}");
}
