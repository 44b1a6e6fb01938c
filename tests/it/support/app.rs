//! A database and real nodes on it, from a few lines of configuration.

use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};

use super::database::TestDb;
use super::node::{Launch, Node};
use super::signer::STRIPE_SECRET;

/// One test's service: a node (more by [`TestApp::another_node`]) and its database.
///
/// It derefs to its first node, so that `app.post_stripe(..)` and `app.kill9()` read well.
#[derive(Debug)]
pub(crate) struct TestApp {
    // Dropped in this order: the node dies before its database goes.
    node: Node,
    /// Its database.
    pub(crate) db: TestDb,
    launch: Launch,
    nodes: u32,
    _dir: tempfile::TempDir,
}

impl TestApp {
    /// Describes one.
    pub(crate) fn builder() -> AppBuilder {
        AppBuilder::default()
    }

    /// Starts another node with the same configuration on the same database.
    pub(crate) async fn another_node(&mut self) -> Node {
        let toml = self.launch.toml.clone();
        self.another_node_with(&toml).await
    }

    /// Starts another node with another configuration (`[database]` included), see
    /// [`Node::toml`].
    pub(crate) async fn another_node_with(&mut self, toml: &str) -> Node {
        let env = self.launch.env.clone();
        self.start_another(toml.to_owned(), env).await
    }

    /// Starts another node with the same configuration in another environment.
    pub(crate) async fn another_node_in(&mut self, env: Vec<(String, String)>) -> Node {
        let toml = self.launch.toml.clone();
        self.start_another(toml, env).await
    }

    async fn start_another(&mut self, toml: String, env: Vec<(String, String)>) -> Node {
        self.nodes += 1;
        Node::start(Launch {
            toml,
            name: format!("node-{}", self.nodes),
            env,
            ..self.launch.clone()
        })
        .await
    }
}

impl Deref for TestApp {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl DerefMut for TestApp {
    fn deref_mut(&mut self) -> &mut Node {
        &mut self.node
    }
}

/// The configuration of a [`TestApp`].
#[derive(Debug, Default)]
pub(crate) struct AppBuilder {
    db: Option<TestDb>,
    database_url: Option<String>,
    database: String,
    toml: String,
    env: Vec<(String, String)>,
    setup: String,
}

impl AppBuilder {
    /// Uses this database in place of a new one.
    pub(crate) fn on(mut self, db: TestDb) -> Self {
        self.db = Some(db);
        self
    }

    /// What the nodes connect to in place of the database itself, such as a `PgProxy`.
    pub(crate) fn database_url(mut self, url: impl Into<String>) -> Self {
        self.database_url = Some(url.into());
        self
    }

    /// Further lines of `[database]`.
    pub(crate) fn database_toml(mut self, lines: &str) -> Self {
        self.database.push_str(lines);
        self.database.push('\n');
        self
    }

    /// A Stripe source with the secret that `post_stripe` signs with; it accepts both modes.
    pub(crate) fn stripe(self, name: &str) -> Self {
        self.source(
            name,
            "stripe",
            STRIPE_SECRET,
            r#"accept_modes = ["live", "test"]"#,
        )
    }

    /// A source with one secret, and further lines of it.
    pub(crate) fn source(mut self, name: &str, provider: &str, secret: &str, lines: &str) -> Self {
        write!(
            self.toml,
            "[[source]]\nname = {name:?}\nprovider = {provider:?}\n\
             secrets = [{{ label = \"a\", value = {secret:?} }}]\n{lines}\n\n"
        )
        .unwrap();
        self
    }

    /// A `sql` handler for every event, and further lines of it.
    pub(crate) fn sql_handler(mut self, name: &str, call: &str, lines: &str) -> Self {
        write!(
            self.toml,
            "[[handler]]\nname = {name:?}\nkind = \"sql\"\ncall = {call:?}\n{}{lines}\n\n",
            events(lines)
        )
        .unwrap();
        self
    }

    /// An `http` handler for every event, and further lines of it.
    pub(crate) fn http_handler(mut self, name: &str, url: &str, lines: &str) -> Self {
        write!(
            self.toml,
            "[[handler]]\nname = {name:?}\nkind = \"http\"\nurl = {url:?}\n{}{lines}\n\n",
            events(lines)
        )
        .unwrap();
        self
    }

    /// Any further configuration.
    pub(crate) fn toml(mut self, text: &str) -> Self {
        self.toml.push_str(text);
        self.toml.push('\n');
        self
    }

    /// An environment variable of the nodes.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// SQL run on the migrated database before the first node starts: the user's own tables
    /// and functions.
    pub(crate) fn setup(mut self, sql: &str) -> Self {
        self.setup.push_str(sql);
        self.setup.push_str(";\n");
        self
    }

    /// Makes the database if none was given, and starts the first node.
    pub(crate) async fn start(self) -> TestApp {
        let db = match self.db {
            Some(db) => db,
            None => TestDb::new().await,
        };
        if !self.setup.is_empty() {
            db.execute(&self.setup).await;
        }
        let url = self.database_url.as_ref().unwrap_or(&db.url);
        let dir = tempfile::tempdir().unwrap();
        let launch = Launch {
            command: vec![
                env!("CARGO_BIN_EXE_oncehook").to_owned(),
                "serve".to_owned(),
            ],
            toml: format!(
                "[database]\nurl = {url:?}\n{}\n{}",
                self.database, self.toml
            ),
            dir: dir.path().to_owned(),
            name: "node-1".to_owned(),
            env: self.env,
        };
        let node = Node::start(launch.clone()).await;
        TestApp {
            node,
            db,
            launch,
            nodes: 1,
            _dir: dir,
        }
    }
}

/// Every event, unless the handler's own lines say which.
fn events(lines: &str) -> &'static str {
    let own = lines
        .lines()
        .any(|line| line.trim_start().starts_with("events"));
    if own { "" } else { "events = [\"*:*\"]\n" }
}
