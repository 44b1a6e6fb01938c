//! The inbox inside an application of your own: its routes, its database, its table.
//!
//! ```text
//! DATABASE_URL=postgresql://... STRIPE_WEBHOOK_SECRET=whsec_... cargo run --example embed
//! ```
//!
//! Webhooks are taken at `POST /pay/webhooks/stripe-main`; `GET /payments` is the application's
//! own. A payment is recorded in the application's table in the same transaction that records the
//! event's outcome: both are there, or neither.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use actix_web::{App, HttpResponse, HttpServer, web};
use oncehook::tokio_postgres::{self, Client, NoTls};
use oncehook::{
    Answer, Delivered, DispatchConfig, Engine, EngineConfig, Function, HandlerError, HandlerKind,
    HandlerSpec, Inbox, Limits, Pattern, Settings, Source, Store, Work, async_trait, migrate,
};
use serde_json::{Value, json};

type Error = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
This example needs a database of yours and a signing secret:

  DATABASE_URL=postgresql://user:password@host/database STRIPE_WEBHOOK_SECRET=whsec_... \\
    cargo run --example embed

It makes a schema `shop` there, beside oncehook's own.";

/// What the application has anyway: a table of its own.
const TABLES: &str = "
CREATE SCHEMA IF NOT EXISTS shop;
CREATE TABLE IF NOT EXISTS shop.payment (
  event_key text NOT NULL,
  reference text NOT NULL,
  amount    bigint NOT NULL,
  currency  text NOT NULL
);";

/// Connections of the dispatcher, for handlers at work.
const CONNECTIONS: usize = 4;

/// Records a payment. A plain insert: it needs no conflict clause, since it commits together with
/// the outcome of its event.
struct RecordPayment;

#[async_trait]
impl Function for RecordPayment {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        let body: Value = serde_json::from_slice(&event.body)?;
        let text = |pointer| body.pointer(pointer).and_then(Value::as_str);
        let amount = body.pointer("/data/object/amount").and_then(Value::as_i64);
        let (Some(reference), Some(amount), Some(currency)) = (
            text("/data/object/id"),
            amount,
            text("/data/object/currency"),
        ) else {
            return Ok(Answer::Permanent("not a payment as we know it".to_owned()));
        };
        work.execute_prepared(
            "INSERT INTO shop.payment (event_key, reference, amount, currency) VALUES ($1, $2, $3, $4)",
            &[&event.key, &reference, &amount, &currency],
        )
        .await?;
        Ok(Answer::DoneWith(reference.to_owned()))
    }
}

/// Prepares the database and starts the engine.
pub(crate) async fn start(database_url: &str, secret: &str) -> Result<Engine, Error> {
    let settings = Settings::parse(database_url)?;
    migrate::run(&settings).await?;
    connect(database_url).await?.batch_execute(TABLES).await?;
    let config = EngineConfig {
        sources: vec![Source::new("stripe-main", "stripe", &[("a", secret)])?],
        handlers: vec![HandlerSpec::new(
            "payments",
            vec![Pattern::parse("stripe-main:payment_intent.succeeded")?],
            HandlerKind::Function(Arc::new(RecordPayment)),
        )],
        dispatch: Some(DispatchConfig {
            connections: CONNECTIONS,
            ..DispatchConfig::default()
        }),
        ..EngineConfig::default()
    };
    Ok(Engine::start(Store::new(settings, CONNECTIONS)?, config).await?)
}

/// A connection of the application's own.
pub(crate) async fn connect(database_url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(database_url, NoTls).await?;
    // It ends with its client.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// The application's routes, and the inbox under a prefix of its choice.
pub(crate) fn routes(app: &mut web::ServiceConfig, inbox: &Inbox, database: web::Data<Client>) {
    app.app_data(database)
        .route("/payments", web::get().to(payments))
        .service(web::scope("/pay").service(inbox.scope()));
}

async fn payments(database: web::Data<Client>) -> HttpResponse {
    match database
        .query_one(
            "SELECT count(*), coalesce(sum(amount), 0)::bigint FROM shop.payment",
            &[],
        )
        .await
    {
        Ok(row) => HttpResponse::Ok()
            .json(json!({ "payments": row.get::<_, i64>(0), "amount": row.get::<_, i64>(1) })),
        Err(_) => HttpResponse::ServiceUnavailable().finish(),
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Error> {
    let (Ok(database_url), Ok(secret)) =
        (env::var("DATABASE_URL"), env::var("STRIPE_WEBHOOK_SECRET"))
    else {
        eprintln!("{USAGE}");
        return Ok(ExitCode::from(2));
    };
    let engine = start(&database_url, &secret).await?;
    let database = web::Data::new(connect(&database_url).await?);
    // One inbox for all workers: they share its budget of bytes being read.
    let inbox = Inbox::new(engine.clone(), Limits::default());
    // Ctrl-C and SIGTERM end the server; requests under way are answered first.
    HttpServer::new(move || App::new().configure(|app| routes(app, &inbox, database.clone())))
        .bind("127.0.0.1:8090")?
        .run()
        .await?;
    // Handlers at work end, what was claimed and not begun is given back.
    engine.shutdown().await;
    Ok(ExitCode::SUCCESS)
}
