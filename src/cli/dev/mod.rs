//! `dev`: everything on this machine, from nothing to the first event.

mod database;
mod echo;
mod sample;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::embedded::{Charges, Conduct};
use crate::store::{Settings, Store, migrate, sample as sample_objects};

use super::context::Context;
use super::failure::{Failure, Step as _};
use super::serve::node::{Node, Origin};
use super::serve::signals::Signals;
use super::{serve, words};

use database::Database;
use echo::Echo;
use sample::{Addresses, Secrets};

/// Where `dev` keeps everything, in the current folder.
const FOLDER: &str = ".oncehook";
/// Used when free; another clone beside this one gets other ports.
const PUBLIC_PORT: u16 = 8080;
const API_PORT: u16 = 8081;
const PROVIDER_PORT: u16 = 8082;

/// Run everything on this machine, from nothing.
///
/// Starts a private PostgreSQL (or uses the database of `DATABASE_URL`), a sample source for every
/// provider, a ledger to book into, a receiver that echoes calls, and an operation that charges at
/// a payment provider, which can be told to lose answers and keeps its charges in memory.
/// Everything else is kept in ./.oncehook and is there again at the next start, also after a crash.
/// Ctrl-C stops everything.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: oncehook dev --fresh")]
pub(super) struct Args {
    /// Begin anew: remove the private database and the sample configuration first.
    #[arg(long)]
    fresh: bool,
    /// Print one line of JSON with the addresses to stdout when listening.
    #[arg(long, hide = true)]
    announce: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let folder = folder()?;
    let mut database = tokio::select! {
        () = signals.stop() => return Ok(()),
        database = Database::open(context, &folder, args.fresh) => database?,
    };
    let result = Box::pin(with_database(
        context,
        &args,
        &folder,
        database.url(),
        &mut signals,
    ))
    .await;
    context.printer.note("stopping the database ...");
    // What went wrong first is what the user has to know.
    result.and(database.close().await)
}

async fn with_database(
    context: &Context,
    args: &Args,
    folder: &Path,
    url: &str,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let file = folder.join("dev.toml");
    let start = async {
        let settings = Settings::parse(url)?;
        for name in migrate::run(&settings).await? {
            context.printer.note(format_args!("migrated: {name}"));
        }
        sample_objects::install(&settings).await?;
        let secrets = Secrets::kept_or_new(&file);
        let echo = Echo::start(context.printer, &secrets).step("cannot start the echo receiver")?;
        let charges = Charges::start(free_or_any(PROVIDER_PORT), Conduct::default())
            .step("cannot start the demonstration provider")?;
        let mut addresses = Addresses {
            public: free_or_any(PUBLIC_PORT),
            api: free_or_any(API_PORT),
            echo: echo.address(),
            charges: charges.address(),
        };
        let text = sample::configuration(url, &addresses, &secrets);
        let config = Config::parse(&text, &file, &context.environment)?;
        serve::start_log(context, &config)?;
        let node = Node::start(&config, Store::new(settings, config.dispatch.connections)?).await?;
        addresses.public = node.public();
        addresses.api = node.api();
        // Other verbs find the service by what is written here, so it names the real ports.
        write_private(&file, &sample::configuration(url, &addresses, &secrets))?;
        Ok::<_, Failure>((node, (echo, charges), config))
    };
    let (node, (echo, charges), config) = tokio::select! {
        () = signals.stop() => return Ok(()),
        started = start => started?,
    };
    say_ready(context, &config, &node, &file, charges.address());
    if args.announce {
        node.announce(context.printer)?;
    }
    let result = node.run(signals, Origin { path: file, config }).await;
    echo.stop().await;
    charges.stop().await;
    result
}

/// Makes `.oncehook`, which no version control takes up: it holds secrets.
fn folder() -> Result<PathBuf, Failure> {
    let folder = PathBuf::from(FOLDER);
    fs::create_dir_all(&folder)
        .and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::write(folder.join(".gitignore"), "*\n"))
        .step(format!("cannot make ./{FOLDER}"))?;
    Ok(folder)
}

/// Writes a file only its owner can read, whole or not at all.
fn write_private(path: &Path, text: &str) -> Result<(), Failure> {
    let fresh = path.with_extension("toml.new");
    let write = || {
        use std::io::Write as _;
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&fresh, path)
    };
    write().step(format!("cannot write {}", path.display()))
}

/// The usual port if nobody has it, else whichever the system gives.
fn free_or_any(port: u16) -> SocketAddr {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpListener::bind(usual) {
        Ok(_) => usual,
        Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    }
}

fn say_ready(context: &Context, config: &Config, node: &Node, file: &Path, charges: SocketAddr) {
    let note = |text: String| context.printer.note(text);
    let program = words::program(&context.environment);
    note(String::new());
    note("oncehook is ready".to_owned());
    for source in &config.sources {
        let name = &source.source.name;
        note(format!(
            "  webhooks       http://{}/webhooks/{name}",
            node.public()
        ));
    }
    note(format!("  status         http://{}/v1/events", node.api()));
    note(format!("  metrics        http://{}/metrics", node.api()));
    note(format!("  configuration  {}", file.display()));
    note("  handlers       ledger books into app.ledger; echo prints its calls here".to_owned());
    note(format!(
        "  operation      charge charges at a demonstration provider, http://{charges}/charges"
    ));
    note(String::new());
    note("next, in a second terminal:".to_owned());
    note(format!(
        "  {program} simulate stripe-main payment_intent.succeeded"
    ));
    note(format!(
        "  curl -i -d '{{\"amount\": 5}}' -H 'Content-Type: application/json' -H 'Idempotency-Key: order-1' http://{}/v1/operations/charge",
        node.api()
    ));
    note("and again with other keys, once the provider loses its answers:".to_owned());
    note(format!(
        "  curl -X PUT -d '{{\"drops_replies\": 100}}' http://{charges}/conduct"
    ));
    note(String::new());
    note("Ctrl-C stops everything; `dev --fresh` begins anew".to_owned());
}
