//! For each guard of the product: the test that fails when the guard is taken away.
//!
//! `tests/guards.toml` says which text of the product is a guard, what is left when it is removed,
//! and which test must fail then. [`run`] does it for all of them in a copy of the tree and records
//! what it saw in `docs/proof/guards.md`. The quick tests here keep the three together: the texts
//! are there, the tests exist, each run on record is of the guard as it stands.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use sha2::{Digest, Sha256};

mod matrix;
mod run;

const RECORD: &str = "docs/proof/guards.md";

/// A guard and the test that shows that it is needed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Guard {
    name: String,
    /// Rows of the crash matrix that rest on it.
    #[serde(default)]
    rows: Vec<u32>,
    /// `module::function` of the suite; of the library's unit tests where it begins with `lib `.
    test: String,
    /// What does not hold without it, for the record.
    without: String,
    edits: Vec<Edit>,
}

/// One place of the guard.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    file: PathBuf,
    /// Occurs in the file exactly once.
    find: String,
    replace: String,
}

impl Guard {
    /// Names this very guard: another text or another test is another digest.
    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update(text.len().to_be_bytes());
            hash.update(text);
        };
        add(&self.test);
        for edit in &self.edits {
            add(&edit.file.to_string_lossy());
            add(&edit.find);
            add(&edit.replace);
        }
        hex::encode(hash.finalize())[..10].to_owned()
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn guards() -> Vec<Guard> {
    #[derive(Deserialize)]
    struct File {
        guard: Vec<Guard>,
    }
    let text = fs::read_to_string(root().join("tests/guards.toml")).unwrap();
    toml::from_str::<File>(&text).unwrap().guard
}

/// A run on record.
#[derive(Debug, Clone)]
struct Recorded {
    digest: String,
    seconds: u64,
    /// The first words of the failure.
    failure: String,
}

/// The runs on record, by the guard's name.
fn recorded() -> BTreeMap<String, Recorded> {
    let text = fs::read_to_string(root().join(RECORD)).unwrap_or_default();
    let cells = |line: &str| -> Option<(String, Recorded)> {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, _, _, _, failure, seconds, digest] = cells.as_slice() else {
            return None;
        };
        let recorded = Recorded {
            digest: digest.trim_matches('`').to_owned(),
            seconds: seconds.trim_end_matches(" s").parse().ok()?,
            failure: (*failure).to_owned(),
        };
        Some(((*name).to_owned(), recorded))
    };
    text.lines().filter_map(cells).collect()
}

/// Writes the record: the guards in the order of the file, those on record only.
fn record(runs: &BTreeMap<String, Recorded>) {
    let mut page = String::from(HEAD);
    for guard in guards() {
        let Some(run) = runs.get(&guard.name) else {
            continue;
        };
        let rows: Vec<String> = guard.rows.iter().map(ToString::to_string).collect();
        writeln!(
            page,
            "| {} | {} | {} | `{}` | {} | {} s | `{}` |",
            guard.name,
            rows.join(", "),
            guard.without,
            guard.test,
            run.failure,
            run.seconds,
            run.digest
        )
        .unwrap();
    }
    fs::write(root().join(RECORD), page).unwrap();
}

const HEAD: &str = "\
# Guards, and what happens without them

A test proves something if it fails where the product is wrong. For each guard below the text that
makes it was taken out of a copy of the tree, the product was built, and the one test that is said
to show the guard was run. It failed, each time; the table says with which words.

`just guards` (`cargo test --test it -- --ignored --nocapture guards::run`) does it again for what
has changed since, `ONCEHOOK_GUARDS=all` in front of it for all, `ONCEHOOK_GUARDS=<name>` for one,
`ONCEHOOK_GUARDS=<module>` for those whose test is in it.
What is taken out, to the letter, stands in [tests/guards.toml](../../tests/guards.toml); the
digest says that the run was of that text and that test. The rows are those of the crash matrix in
[guarantees.md](../guarantees.md). The file is written by the command.

| guard | rows | without it | test | how the test failed | took | digest |
| --- | --- | --- | --- | --- | --- | --- |
";

/// The names of all tests of this binary.
fn tests() -> BTreeSet<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--list", "--format", "terse"])
        .output()
        .unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_guard_is_there_and_its_test_exists() {
    let tests = tests();
    let mut names = BTreeSet::new();
    for guard in guards() {
        let name = &guard.name;
        assert!(names.insert(name.clone()), "{name} stands twice");
        assert!(
            !name.contains('|') && !guard.without.contains('|'),
            "{name}"
        );
        match guard.test.strip_prefix("lib ") {
            Some(test) => {
                let function = test.rsplit("::").next().unwrap();
                assert!(is_in_source(function), "{name}: no test {test}");
            }
            None => assert!(tests.contains(&guard.test), "{name}: no {}", guard.test),
        }
        assert!(!guard.edits.is_empty(), "{name} removes nothing");
        for edit in &guard.edits {
            let text = fs::read_to_string(root().join(&edit.file)).unwrap();
            assert_eq!(
                text.matches(&edit.find).count(),
                1,
                "{name}: in {} not exactly once: {}",
                edit.file.display(),
                edit.find
            );
            assert_ne!(edit.find, edit.replace, "{name}");
        }
    }
}

/// Whether the library has a function of this name.
fn is_in_source(function: &str) -> bool {
    fn any(folder: &Path, needle: &str) -> bool {
        fs::read_dir(folder).unwrap().flatten().any(|entry| {
            let path = entry.path();
            if path.is_dir() {
                return any(&path, needle);
            }
            fs::read_to_string(path).is_ok_and(|text| text.contains(needle))
        })
    }
    any(&root().join("src"), &format!("fn {function}("))
}

#[test]
fn every_guard_has_a_run_on_record_in_which_its_test_failed() {
    let recorded = recorded();
    let stale: Vec<String> = guards()
        .into_iter()
        .filter(|guard| {
            recorded
                .get(&guard.name)
                .is_none_or(|run| run.digest != guard.digest())
        })
        .map(|guard| guard.name)
        .collect();
    assert!(stale.is_empty(), "`just guards` was not run for {stale:?}");
    let names: BTreeSet<String> = guards().into_iter().map(|guard| guard.name).collect();
    let gone: Vec<_> = recorded
        .keys()
        .filter(|name| !names.contains(*name))
        .collect();
    assert!(gone.is_empty(), "on record and no guard any more: {gone:?}");
}
