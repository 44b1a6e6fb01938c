//! A route of an application of your own that takes effect once per `Idempotency-Key`.
//!
//! ```text
//! DATABASE_URL=postgresql://... cargo run --example idempotent_route
//!
//! curl -i -d '{"amount": 1200}' -H 'Content-Type: application/json' -H 'Authorization: Bearer demo-shop' \
//!   -H 'Idempotency-Key: order-17' http://127.0.0.1:8091/accounts/7/payments
//! ```
//!
//! Sent again, it gets the same answer, and `GET /accounts/7/balance` stays as it is. The booking and the
//! stored answer are written in one transaction: both are there, or neither.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use oncehook::tokio_postgres::{self, Client, NoTls};
use oncehook::{
    Answer, Delivered, DispatchConfig, Engine, EngineConfig, Function, HandlerError, HandlerKind,
    HandlerSpec, Limits, OperationSpec, Operations, Response, Settings, Store, Submitted, Work,
    async_trait, migrate,
};
use serde::Deserialize;
use serde_json::json;

type Error = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
This example needs a database of yours:

  DATABASE_URL=postgresql://user:password@host/database cargo run --example idempotent_route

It makes a schema `shop` there, beside oncehook's own.";

/// What the application has anyway: a table of its own.
const TABLES: &str = "
CREATE SCHEMA IF NOT EXISTS shop;
CREATE TABLE IF NOT EXISTS shop.booking (
  no      bigint GENERATED ALWAYS AS IDENTITY,
  account text NOT NULL,
  amount  bigint NOT NULL
);";

/// Connections of the dispatcher, for routes at work.
const CONNECTIONS: usize = 4;

/// What a client wants.
#[derive(Deserialize)]
struct Payment {
    amount: i64,
}

/// What `POST /accounts/{account}/payments` does. A plain insert: whoever sends the same again does not get
/// here.
struct CreatePayment;

#[async_trait]
impl Function for CreatePayment {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        let Ok(request) = Submitted::of(event) else {
            return Ok(Answer::Permanent("not a request of the route".to_owned()));
        };
        let account = request.path.get("account");
        let amount = request.json().map_or(0, |payment: Payment| payment.amount);
        let (Some(account), 1..) = (account, amount) else {
            return Ok(refused("amount must be a whole number above zero"));
        };
        let row = work
            .query_opt(
                "INSERT INTO shop.booking (account, amount) VALUES ($1, $2) RETURNING no",
                &[account, &amount],
            )
            .await?
            .ok_or("nothing was inserted")?;
        let no: i64 = row.try_get(0)?;
        let body = json!({ "payment": no, "account": account, "amount": amount }).to_string();
        let response = Response::json(201, body).with_header("Location", format!("/payments/{no}"));
        Ok(Answer::DoneWith(format!("payment {no}")).with_response(response))
    }
}

/// The business says no: final, stored, and the same at every retry.
fn refused(why: &str) -> Answer {
    let body = json!({ "error": why }).to_string();
    Answer::Failed(why.to_owned()).with_response(Response::json(422, body))
}

/// The application's own way to know who asks.
fn client(request: &HttpRequest) -> Option<String> {
    let shown = request.headers().get("Authorization")?.to_str().ok()?;
    match shown.strip_prefix("Bearer ")? {
        "demo-shop" => Some("shop".to_owned()),
        "demo-desk" => Some("desk".to_owned()),
        _ => None,
    }
}

/// Prepares the database and starts the engine.
pub(crate) async fn start(database_url: &str) -> Result<Engine, Error> {
    let settings = Settings::parse(database_url)?;
    migrate::run(&settings).await?;
    connect(database_url).await?.batch_execute(TABLES).await?;
    let config = EngineConfig {
        handlers: vec![HandlerSpec::operation(
            "create_payment",
            HandlerKind::Function(Arc::new(CreatePayment)),
            OperationSpec {
                // Honest retries may differ in it.
                volatile: vec!["/body/client_time".to_owned()],
                ..OperationSpec::default()
            },
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

/// The idempotent routes of one engine, for all workers of actix.
pub(crate) fn operations(engine: Engine) -> Operations {
    Operations::new(engine, Limits::default(), client)
}

/// The application's routes.
pub(crate) fn routes(
    app: &mut web::ServiceConfig,
    operations: &Operations,
    database: web::Data<Client>,
) {
    app.app_data(database)
        .route(
            "/accounts/{account}/payments",
            operations.route("create_payment"),
        )
        .route("/accounts/{account}/balance", web::get().to(balance))
        .service(operations.statuses("/intents"));
}

async fn balance(account: web::Path<String>, database: web::Data<Client>) -> HttpResponse {
    match database
        .query_one(
            "SELECT coalesce(sum(amount), 0)::bigint FROM shop.booking WHERE account = $1",
            &[&*account],
        )
        .await
    {
        Ok(row) => HttpResponse::Ok().json(json!({ "balance": row.get::<_, i64>(0) })),
        Err(_) => HttpResponse::ServiceUnavailable().finish(),
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Error> {
    let Ok(database_url) = env::var("DATABASE_URL") else {
        eprintln!("{USAGE}");
        return Ok(ExitCode::from(2));
    };
    let engine = start(&database_url).await?;
    let database = web::Data::new(connect(&database_url).await?);
    let routed = operations(engine.clone());
    // Ctrl-C and SIGTERM end the server; requests under way are answered first.
    HttpServer::new(move || App::new().configure(|app| routes(app, &routed, database.clone())))
        .bind("127.0.0.1:8091")?
        .run()
        .await?;
    engine.shutdown().await;
    Ok(ExitCode::SUCCESS)
}
