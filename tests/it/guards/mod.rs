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
    /// What its failure must say, all on one line: parts in this order, with ` .. ` between them.
    fails: String,
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
    /// The test's function as it is written; of a scenario, that which its line names.
    fn written(&self) -> String {
        let name = self.test.rsplit("::").next().unwrap_or_default();
        let read = |file: &PathBuf| fs::read_to_string(file).unwrap();
        let texts: Vec<String> = self.sources().iter().map(read).collect();
        let function = |name: &str| texts.iter().find_map(|text| function_of(text, name));
        let scenario = || {
            let start = format!("{name}: ");
            let mut lines = texts.iter().flat_map(|text| text.lines());
            let line = lines.find_map(|line| line.trim().strip_prefix(&start))?;
            let (path, _) = line.split_once(',')?;
            let (module, inner) = path.split_once("::")?;
            let folder = self.sources().first()?.parent()?.to_owned();
            function_of(&read(&folder.join(format!("{module}.rs"))), inner)
        };
        function(name).or_else(scenario).unwrap_or_default()
    }

    /// The files that the test may be written in: that of its module and of those above it; where the
    /// module is a folder, all of it.
    fn sources(&self) -> Vec<PathBuf> {
        let (mut folder, path) = match self.test.strip_prefix("lib ") {
            Some(path) => (root().join("src"), path),
            None => (root().join("tests/it"), self.test.as_str()),
        };
        let mut files = Vec::new();
        for module in path.split("::") {
            files.extend([
                folder.join(format!("{module}.rs")),
                folder.join(module).join("mod.rs"),
            ]);
            folder = folder.join(module);
        }
        files.retain(|file| file.is_file());
        if let Some(last) = files.last().filter(|file| file.ends_with("mod.rs")) {
            let beside = fs::read_dir(last.parent().unwrap()).unwrap().flatten();
            let beside = beside
                .map(|entry| entry.path())
                .filter(|file| file.is_file());
            let mut beside: Vec<PathBuf> = beside.filter(|file| file != last).collect();
            beside.sort();
            files.extend(beside);
        }
        files
    }

    /// Whether a panic's words, on one line, are those by which the test must fail.
    fn is_shown_by(&self, said: &str) -> bool {
        let mut rest = said;
        self.fails.split(" .. ").all(|part| {
            let found = rest.find(part).map(|at| rest.split_at(at + part.len()).1);
            rest = found.unwrap_or_default();
            found.is_some()
        })
    }

    /// Names this very guard: another text, another test or other words are another digest.
    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update(text.len().to_be_bytes());
            hash.update(text);
        };
        add(&self.test);
        add(&self.fails);
        add(&self.written());
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

/// A function with what stands above it.
fn function_of(text: &str, name: &str) -> Option<String> {
    let at = text.find(&format!("fn {name}("))?;
    let (before, after) = text.split_at(at);
    let begin = before.rfind("\n\n").unwrap_or(0);
    // Of a function in a module inside the file, too.
    let line = before.rsplit('\n').next().unwrap_or_default();
    let indent = line.len() - line.trim_start().len();
    let close = format!("\n{}}}\n", " ".repeat(indent));
    let end = after.find(&close)? + close.len();
    Some(text[begin..at + end].to_owned())
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
to show the guard was run. It failed, each time, and at the place that shows the guard: what its
panic had to say stands beside the guard, and any other failure would not have counted. The table has
its words.

`just guards` (`cargo test --test it -- --ignored --nocapture guards::run`) does it again for what
has changed since, `ONCEHOOK_GUARDS=all` in front of it for all, `ONCEHOOK_GUARDS=<name>` for one,
`ONCEHOOK_GUARDS=<module>` for those whose test is in it.
What is taken out, to the letter, stands in [tests/guards.toml](../../tests/guards.toml), with what
the failure must say. The digest says that the run was of that text, those words, and that test's
function as it is written. The rows are those of the crash
matrix in [guarantees.md](../guarantees.md). The file is written by the command.

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
        assert!(!guard.written().is_empty(), "{name}: nobody wrote its test");
        // What any failure says shows nothing.
        let any = "assertion `left == right` failed left: right: waited 30s in vain: failed";
        let says = guard
            .fails
            .split(" .. ")
            .any(|part| !any.contains(part.trim()));
        assert!(says, "{name}: {:?} is said by any failure", guard.fails);
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
fn only_a_failure_in_the_words_of_the_guard_counts() {
    let guard = guards()
        .into_iter()
        .find(|guard| guard.name == "reaper")
        .unwrap();
    let output = |panic: &str| {
        format!(
            "running 1 test\ntest {0} ... FAILED\n\nfailures:\n\n---- {0} stdout ----\n\n\
             thread '{0}' (7) panicked at tests/it/support/wait.rs:21:9:\n{panic}\n\
             note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n\n\n\
             failures:\n    {0}\n",
            guard.test
        )
    };
    let in_vain = output("waited 30s in vain:\n  outcome of stripe evt_1 at ledger");
    let other = output("waited 30s in vain: the node starts");
    let (shown, other) = (run::panics(&in_vain), run::panics(&other));
    assert_eq!(
        shown,
        ["waited 30s in vain: outcome of stripe evt_1 at ledger"]
    );
    assert!(guard.is_shown_by(&shown[0]));
    assert!(!guard.is_shown_by(&other[0]), "{other:?}");
    assert_eq!(run::panics("error: could not compile `oncehook`"), [""; 0]);
    let ordered = Guard {
        fails: "evt_1 must not .. left: 200".to_owned(),
        ..guard
    };
    assert!(ordered.is_shown_by("failed: evt_1 must not be told: {} left: 200 right: 503"));
    assert!(!ordered.is_shown_by("failed: left: 200 right: 503 evt_1 must not"));
}

#[test]
fn a_guards_digest_changes_with_the_file_of_its_test() {
    let of = |test: &str| {
        let guard = guards()
            .into_iter()
            .find(|guard| guard.test == test)
            .unwrap();
        let files = guard.sources().into_iter();
        let files = files.map(|file| {
            file.strip_prefix(root().join("tests/it"))
                .unwrap()
                .to_owned()
        });
        files.collect::<Vec<_>>()
    };
    let alone = of("crash::kill::killed_while_the_body_arrives_stores_nothing");
    assert_eq!(
        alone,
        [Path::new("crash/mod.rs"), Path::new("crash/kill.rs")]
    );
    let folder = of("interleave::ingest_same_key");
    assert_eq!(folder[0], Path::new("interleave/mod.rs"));
    assert!(
        folder.contains(&PathBuf::from("interleave/ingest.rs")),
        "{folder:?}"
    );
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
