//! The shape of the source tree, read from its text.

use std::fs;
use std::path::{Path, PathBuf};

/// Longest file of `src`, in lines.
const LINES_MAX: usize = 600;

/// The line of imports: a module uses what stands before it.
const ORDER: [&str; 8] = [
    "domain", "provider", "store", "ingest", "dispatch", "engine", "http", "cli",
];

/// What may be used beside that line, and by whom.
const BESIDE: [(&str, &[&str]); 3] = [
    ("telemetry", &["domain"]),
    (
        "config",
        &["domain", "provider", "ingest", "dispatch", "engine"],
    ),
    ("embedded", &[]),
];

/// A file of `src`: its path below `src`, its text.
struct File {
    path: PathBuf,
    text: String,
}

impl File {
    /// The stage it belongs to.
    fn module(&self) -> String {
        let first = self.path.iter().next().unwrap();
        Path::new(first)
            .with_extension("")
            .to_string_lossy()
            .into_owned()
    }

    /// Its lines that are not comments, numbered from 1.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .map(|(index, line)| (index + 1, line))
    }
}

fn read(folder: &Path, extension: &str, files: &mut Vec<File>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, extension, files);
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(File {
                text: fs::read_to_string(&path).unwrap(),
                path: path.strip_prefix(&root).unwrap().to_owned(),
            });
        }
    }
}

fn sources() -> Vec<File> {
    let mut files = Vec::new();
    read(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        "rs",
        &mut files,
    );
    assert!(files.len() > 50, "{}", files.len());
    files
}

/// The modules that a line names after `crate::`.
fn named(line: &str) -> Vec<&str> {
    line.match_indices("crate::")
        // `in crate::cli` says who may see, not what is used.
        .filter(|(at, _)| !line[..*at].ends_with("in "))
        .filter_map(|(at, found)| {
            let rest = &line[at + found.len()..];
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            Some(&rest[..end.unwrap_or(rest.len())]).filter(|name| !name.is_empty())
        })
        .collect()
}

fn may_use(user: &str, used: &str) -> bool {
    let place = |name: &str| ORDER.iter().position(|module| *module == name);
    let beside = |name: &str| BESIDE.iter().find(|(module, _)| *module == name);
    if user == used {
        return true;
    }
    match (beside(user), place(user), beside(used), place(used)) {
        (Some((_, allowed)), ..) => allowed.contains(&used),
        (_, Some(_), Some(_), _) if used == "telemetry" => user != "domain",
        (_, Some(_), Some(_), _) => user == "cli",
        (_, Some(user), _, Some(used)) => used < user,
        _ => false,
    }
}

#[test]
fn imports_go_one_way() {
    let mut wrong = Vec::new();
    for file in sources() {
        let user = file.module();
        // `lib.rs` lists the modules, `main.rs` starts one.
        if matches!(user.as_str(), "lib" | "main") {
            continue;
        }
        for (number, line) in file.code() {
            assert!(
                !line.contains("use crate::{"),
                "{}:{number}: one `use` per module, so that this test can read it",
                file.path.display()
            );
            for used in named(line) {
                if !may_use(&user, used) {
                    wrong.push(format!("{}:{number}: {line}", file.path.display()));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "imports against the line:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn the_rule_itself_tells_right_from_wrong() {
    for (user, used) in [
        ("store", "domain"),
        ("cli", "config"),
        ("http", "telemetry"),
        ("cli", "embedded"),
        ("config", "engine"),
    ] {
        assert!(may_use(user, used), "{user} -> {used}");
    }
    for (user, used) in [
        ("domain", "store"),
        ("domain", "telemetry"),
        ("store", "ingest"),
        ("http", "config"),
        ("engine", "http"),
        ("config", "cli"),
        ("embedded", "domain"),
        ("telemetry", "store"),
        ("store", "embedded"),
        ("cli", "elsewhere"),
    ] {
        assert!(!may_use(user, used), "{user} -> {used}");
    }
    assert_eq!(named("use crate::store::{self, Store};"), ["store"]);
    assert_eq!(
        named("pub(in crate::cli) fn f(x: crate::http::Y)"),
        ["http"]
    );
}

/// Beginnings of statements, as they stand in a string.
const STATEMENTS: [&str; 16] = [
    "SELECT ",
    "INSERT INTO ",
    "UPDATE ",
    "DELETE FROM ",
    "CREATE ",
    "ALTER ",
    "DROP ",
    "TRUNCATE ",
    "BEGIN",
    "COMMIT\"",
    "ROLLBACK\"",
    "SAVEPOINT ",
    "SET LOCAL ",
    "LISTEN ",
    "NOTIFY ",
    "COPY ",
];

/// Whether a line begins a statement, in a string or in the middle of one that spans lines.
fn holds_sql(line: &str) -> bool {
    let begins = |text: &str| STATEMENTS.iter().any(|start| text.starts_with(start));
    begins(line.trim_start())
        || line
            .match_indices('"')
            .any(|(at, _)| begins(&line[at + 1..]))
        || line.contains(".sql\"")
}

#[test]
fn sql_stands_in_store_only() {
    assert!(holds_sql("client.execute(\"SELECT 1\", &[])"));
    assert!(holds_sql("    UPDATE t SET x = 1"));
    assert!(!holds_sql("let update = \"UPDATED\";"));
    let mut wrong = Vec::new();
    for file in sources() {
        if file.module() == "store" {
            continue;
        }
        for (number, line) in file.code() {
            // A new cluster has no database that a migration could run in.
            let database = file.module() == "embedded" && line.contains("CREATE DATABASE");
            if holds_sql(line) && !database {
                wrong.push(format!("{}:{number}: {line}", file.path.display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "SQL outside of store:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_statement_has_a_head_and_one_reader() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut statements = Vec::new();
    read(&root.join("store/sql"), "sql", &mut statements);
    let sources = sources();
    for statement in statements {
        let name = statement.path.file_stem().unwrap().to_string_lossy();
        assert!(
            statement.text.starts_with(&format!("-- {name}: ")),
            "{name}: begins with its name and what it does"
        );
        let included = format!("sql/{name}.sql\")");
        let readers = sources
            .iter()
            .filter(|file| file.text.contains(&included))
            .count();
        assert_eq!(readers, 1, "{name}");
    }
}

#[test]
fn no_source_file_is_long() {
    let mut long = Vec::new();
    for file in sources() {
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            long.push(format!("{}: {lines} lines", file.path.display()));
        }
    }
    assert!(
        long.is_empty(),
        "does each still have one job?\n{}",
        long.join("\n")
    );
}
