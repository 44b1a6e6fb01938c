//! Takes each guard away in a copy of the tree and sees its test fail, in the words of the guard.
//!
//! `ONCEHOOK_GUARDS`: `all`, the name of one, or a module such as `failover` for those whose test is
//! in it; else those that have no run on record.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::{Guard, Recorded, guards, record, recorded, root};

/// Build and test of one guard together.
const TIME_MAX: Duration = Duration::from_mins(8);

/// What of the repository the build and the tests need.
const PARTS: [&str; 12] = [
    "Cargo.toml",
    "Cargo.lock",
    "src",
    "schema.sql",
    "tests",
    "fixtures",
    "docs",
    "benches",
    "examples",
    "README.md",
    "justfile",
    ".cargo",
];

/// The copy, and where it is built.
struct Copy {
    tree: PathBuf,
    target: PathBuf,
}

/// How a run of tests ended.
enum Ended {
    Passed,
    /// What its panics said, each on one line.
    Failed(Vec<String>),
    /// It was not built, or no test was run, or it took too long: neither of both.
    Unclear(String),
}

#[test]
#[ignore = "long: just guards"]
fn every_guard_is_needed() {
    let wanted = std::env::var("ONCEHOOK_GUARDS").unwrap_or_default();
    let mut runs = recorded();
    let todo: Vec<Guard> = guards()
        .into_iter()
        .filter(|guard| match wanted.as_str() {
            "all" => true,
            "" => runs
                .get(&guard.name)
                .is_none_or(|run| run.digest != guard.digest()),
            wanted => wanted == guard.name || guard.test.starts_with(&format!("{wanted}::")),
        })
        .collect();
    assert!(wanted.is_empty() || !todo.is_empty(), "no guard {wanted:?}");
    let copy = Copy::make();
    eprintln!(
        "{} guards; first their tests with all guards in place",
        todo.len()
    );
    for target in ["it", "lib"] {
        let tests: BTreeSet<&str> = todo
            .iter()
            .filter_map(|guard| test_of(guard, target))
            .collect();
        if tests.is_empty() {
            continue;
        }
        match copy.test(target, &tests.into_iter().collect::<Vec<_>>()) {
            Ended::Passed => {}
            Ended::Failed(said) => panic!("with all guards: {said:#?}"),
            Ended::Unclear(what) => panic!("with all guards: {what}"),
        }
    }
    let mut needless = Vec::new();
    for (index, guard) in todo.iter().enumerate() {
        let began = Instant::now();
        let ended = copy.without(guard);
        let seconds = began.elapsed().as_secs();
        let name = &guard.name;
        let at = format!("{}/{} {name} ({seconds} s)", index + 1, todo.len());
        match shown(guard, ended) {
            Ok(failure) => {
                eprintln!("{at} needed: {failure}");
                let run = Recorded {
                    digest: guard.digest(),
                    seconds,
                    failure,
                };
                runs.insert(name.clone(), run);
            }
            Err(why) => {
                eprintln!("{at} NOT SHOWN: {why}");
                needless.push(format!("{name}: {why}"));
            }
        }
        let known: BTreeSet<String> = guards().into_iter().map(|guard| guard.name).collect();
        runs.retain(|name, _| known.contains(name));
        record(&runs);
    }
    assert!(
        needless.is_empty(),
        "ONCEHOOK_GUARDS=<name> just guards repeats one: {needless:#?}"
    );
}

/// The failure that shows the guard, for the record; or why there is none.
fn shown(guard: &Guard, ended: Ended) -> Result<String, String> {
    match ended {
        Ended::Failed(said) => match said.iter().find(|said| guard.is_shown_by(said)) {
            Some(said) => Ok(in_short(said)),
            None => Err(format!("it fails without {:?}: {said:#?}", guard.fails)),
        },
        Ended::Passed => Err(format!("{} passes without it", guard.test)),
        Ended::Unclear(what) => Err(what),
    }
}

/// The test of a guard, if it is of this target.
fn test_of<'g>(guard: &'g Guard, target: &str) -> Option<&'g str> {
    match guard.test.strip_prefix("lib ") {
        Some(test) => (target == "lib").then_some(test),
        None => (target == "it").then_some(guard.test.as_str()),
    }
}

impl Copy {
    /// Makes the copy, or brings it up to date: what is equal keeps its time, so that little is
    /// built anew.
    fn make() -> Self {
        let folder = root().join("target/guards");
        let copy = Self {
            tree: folder.join("tree"),
            target: folder.join("build"),
        };
        fs::create_dir_all(&copy.tree).unwrap();
        for part in PARTS {
            let from = root().join(part);
            if from.exists() {
                bring(&from, &copy.tree.join(part));
            }
        }
        copy
    }

    /// Runs the guard's test without the guard, and puts the guard back.
    fn without(&self, guard: &Guard) -> Ended {
        for edit in &guard.edits {
            let path = self.tree.join(&edit.file);
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches(&edit.find).count(), 1, "{}", guard.name);
            fs::write(&path, text.replace(&edit.find, &edit.replace)).unwrap();
        }
        let target = if guard.test.starts_with("lib ") {
            "lib"
        } else {
            "it"
        };
        let ended = self.test(target, &[test_of(guard, target).unwrap()]);
        for edit in &guard.edits {
            bring(&root().join(&edit.file), &self.tree.join(&edit.file));
        }
        ended
    }

    /// Builds and runs exactly these tests.
    fn test(&self, target: &str, tests: &[&str]) -> Ended {
        let log = self.tree.with_file_name("last.log");
        let output = File::create(&log).unwrap();
        let mut command = Command::new(env!("CARGO"));
        command.args(["test", "--locked"]);
        match target {
            "lib" => command.arg("--lib"),
            target => command.args(["--test", target]),
        };
        let mut child = command
            .args(["--", "--exact"])
            .args(tests)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_TERM_COLOR", "never")
            .env_remove("ONCEHOOK_GUARDS")
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            // A group of its own, so that a test that never ends can be ended with its children.
            .process_group(0)
            .spawn()
            .unwrap();
        let began = Instant::now();
        let limit = TIME_MAX * u32::try_from(tests.len().div_ceil(20)).unwrap();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > limit {
                let group = Pid::from_raw(i32::try_from(child.id()).unwrap());
                killpg(group, Signal::SIGKILL).unwrap();
                child.wait().unwrap();
                return Ended::Unclear(format!("no end after {limit:?}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let text = fs::read_to_string(&log).unwrap();
        let ran = |end: &str| {
            tests
                .iter()
                .filter(|test| text.contains(&format!("test {test} ... {end}")))
                .count()
        };
        if status.success() && ran("ok") == tests.len() {
            Ended::Passed
        } else if ran("FAILED") > 0 {
            Ended::Failed(panics(&text))
        } else {
            let cause = text.lines().find(|line| line.starts_with("error"));
            Ended::Unclear(format!(
                "{} ({})",
                cause.unwrap_or("some tests were not run"),
                log.display()
            ))
        }
    }
}

/// What each panic of a run of tests said, on one line.
pub(super) fn panics(output: &str) -> Vec<String> {
    const ENDS: [&str; 4] = ["note: ", "stack backtrace:", "failures:", "---- "];
    let mut panics: Vec<Vec<&str>> = Vec::new();
    let mut within = false;
    for line in output.lines() {
        if line.contains("panicked at ") {
            panics.push(Vec::new());
            within = true;
            continue;
        }
        within &= !ENDS.iter().any(|end| line.starts_with(end));
        if let Some(panic) = panics.last_mut().filter(|_| within) {
            panic.extend(line.split_whitespace());
        }
    }
    panics.iter().map(|words| words.join(" ")).collect()
}

/// A panic's words for a cell of a table: how it begins, and the values that it ends with.
fn in_short(said: &str) -> String {
    const HEAD: usize = 90;
    const TAIL: usize = 110;
    let said: Vec<char> = said.replace(['|', '`', '\u{1b}'], " ").chars().collect();
    if said.len() <= HEAD + TAIL {
        return said.into_iter().collect();
    }
    let (head, tail) = (&said[..HEAD], &said[said.len() - TAIL..]);
    format!(
        "{} ... {}",
        String::from_iter(head),
        String::from_iter(tail)
    )
}

/// Makes `to` equal to `from`, a file or a folder, and leaves alone what is.
fn bring(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        let names = |folder: &Path| -> BTreeSet<_> {
            fs::read_dir(folder)
                .unwrap()
                .flatten()
                .map(|entry| entry.file_name())
                .collect()
        };
        let wanted = names(from);
        for gone in names(to).difference(&wanted) {
            let path = to.join(gone);
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
        for name in wanted {
            bring(&from.join(&name), &to.join(&name));
        }
        return;
    }
    let bytes = fs::read(from).unwrap();
    if fs::read(to).is_ok_and(|known| known == bytes) {
        return;
    }
    fs::write(to, bytes).unwrap();
    let mode = fs::metadata(from).unwrap().permissions();
    fs::set_permissions(to, mode).unwrap();
}
