//! A server of the URL that takes connections and says nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncehook::store::{Settings, migrate};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::crash::{booking, paid, put, until_booked_once};
use crate::support::{Action, PgProxy, TestDb, until};

use super::send_until_acknowledged;

/// It reads and never answers.
struct Silent {
    address: SocketAddr,
    taken: Arc<AtomicUsize>,
    /// Connections that whoever opened them has not closed.
    open: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

impl Silent {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (taken, open) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let counters = (Arc::clone(&taken), Arc::clone(&open));
        let server = tokio::spawn(async move {
            let (taken, open) = counters;
            while let Ok((mut socket, _)) = listener.accept().await {
                taken.fetch_add(1, Ordering::SeqCst);
                open.fetch_add(1, Ordering::SeqCst);
                let open = Arc::clone(&open);
                tokio::spawn(async move {
                    drop(tokio::io::copy(&mut socket, &mut tokio::io::sink()).await);
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self {
            address,
            taken,
            open,
            server,
        }
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }

    /// Waits until nobody waits for it.
    async fn until_left(&self) {
        until("nobody waits for the silent server", async || {
            self.open.load(Ordering::SeqCst) == 0
        })
        .await;
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A second for each server.
fn url(first: SocketAddr, second: &PgProxy, db: &TestDb) -> String {
    let (second, name) = (second.address(), &db.name);
    format!("postgresql://postgres@{first},{second}/{name}?sslmode=disable&connect_timeout=1")
}

async fn until_listening(db: &TestDb) {
    let listens = "SELECT EXISTS (SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND query ~ '^(LISTEN|NOTIFY) oncehook_work')";
    until("it listens", async || db.one::<bool>(listens).await).await;
}

#[tokio::test]
async fn a_server_that_takes_connections_and_is_silent_is_passed_over_and_left() {
    let silent = Silent::start().await;
    let db = TestDb::blank().await;
    let proxy = PgProxy::start(&db.url).await;
    let url = url(silent.address, &proxy, &db);
    let settings = Settings::parse(&url).unwrap();
    let migrated = tokio::time::timeout(Duration::from_secs(20), migrate::run(&settings));
    migrated.await.expect("it does not hang").unwrap();
    assert_eq!(silent.taken(), 1);
    silent.until_left().await;

    let app = booking().on(db).database_url(url).start().await;
    send_until_acknowledged(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;
    until_listening(&app.db).await;
    // Every pool has had its turn with it.
    assert!(silent.taken() > 4, "{}", silent.taken());
    silent.until_left().await;
}

/// It has let us in, and falls silent at the statements that set the session up.
#[tokio::test]
async fn a_server_that_falls_silent_before_a_connection_is_ready_is_passed_over() {
    let db = TestDb::new().await;
    let (first, second) = (PgProxy::start(&db.url).await, PgProxy::start(&db.url).await);
    let url = url(first.address(), &second, &db);
    first.arm("transaction_read_only", Action::FreezeBefore);
    let app = booking().on(db).database_url(url).start().await;
    first.until_fired(1).await;
    send_until_acknowledged(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;
    until_listening(&app.db).await;
    // It speaks again: what was given up stays so, and what is new may lead there.
    first.thaw();
    assert!(put(&app, &paid("evt_1")).await);
}
