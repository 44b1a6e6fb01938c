//! What the database holds, as plain values: the business tables and the stored events.

use std::collections::HashMap;
use std::pin::pin;

use futures_util::TryStreamExt;
use tokio_postgres::{Client, Row};

use super::ByKey;

/// A stored event.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) has_key: bool,
    pub(super) events: i64,
    /// Of the stored bytes; `None` when they cannot be read.
    pub(super) amount: Option<i64>,
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) stored: HashMap<String, Stored>,
    /// Amounts of recorded conflicts.
    pub(super) conflicts: HashMap<String, i64>,
    /// Bookings by handler and event key.
    pub(super) booked: HashMap<String, ByKey>,
    pub(super) balances: HashMap<i64, i128>,
    /// Results of each handler's last runs, by event key.
    pub(super) outcomes: HashMap<String, HashMap<String, String>>,
    /// Deliveries that are left: event key, handler.
    pub(super) unfinished: Vec<(String, String)>,
}

impl Tables {
    /// Reads row by row: a long run has millions.
    pub(super) async fn read(client: &Client) -> Self {
        let mut tables = Self::default();
        each(
            client,
            "SELECT coalesce(k.key, e.key), k.key IS NOT NULL, coalesce(e.events, 0), e.amount
               FROM oncehook.event_key k
               FULL JOIN (
                 SELECT e.source_id, e.key, count(*) AS events,
                        min(convert_from(substr(r.body, e.item_offset + 1, e.item_length), 'UTF8')::jsonb ->> 'amount')::bigint AS amount
                   FROM oncehook.event e LEFT JOIN oncehook.request r ON r.id = e.request_id
                  GROUP BY e.source_id, e.key) e
                 ON e.source_id = k.source_id AND e.key = k.key",
            |row| {
                let stored = Stored {
                    has_key: row.get(1),
                    events: row.get(2),
                    amount: row.get(3),
                };
                tables.stored.insert(row.get(0), stored);
            },
        )
        .await;
        each(
            client,
            "SELECT key, (convert_from(body, 'UTF8')::jsonb ->> 'amount')::bigint FROM oncehook.conflict",
            |row| {
                tables.conflicts.insert(row.get(0), row.get(1));
            },
        )
        .await;
        each(
            client,
            "SELECT handler, key, effect_key, amount FROM app.booking",
            |row| {
                let of_handler = tables.booked.entry(row.get(0)).or_default();
                let effect = of_handler.entry(row.get(1)).or_default();
                effect.add(row.get(2), row.get(3));
            },
        )
        .await;
        each(client, "SELECT id, balance::text FROM app.account", |row| {
            let balance: String = row.get(1);
            tables.balances.insert(row.get(0), balance.parse().unwrap());
        })
        .await;
        each(
            client,
            "SELECT h.name, e.key, o.result FROM oncehook.outcome o
               JOIN oncehook.event e ON e.id = o.event_id JOIN oncehook.handler h ON h.id = o.handler_id
              ORDER BY o.run",
            |row| {
                let of_handler = tables.outcomes.entry(row.get(0)).or_default();
                of_handler.insert(row.get(1), row.get(2));
            },
        )
        .await;
        each(
            client,
            "SELECT coalesce(e.key, d.event_id::text), h.name FROM oncehook.delivery d
               LEFT JOIN oncehook.event e ON e.id = d.event_id JOIN oncehook.handler h ON h.id = d.handler_id",
            |row| tables.unfinished.push((row.get(0), row.get(1))),
        )
        .await;
        tables
    }
}

async fn each(client: &Client, sql: &str, mut take: impl FnMut(&Row)) {
    let none: [&str; 0] = [];
    let mut rows = pin!(client.query_raw(sql, none).await.unwrap());
    while let Some(row) = rows.try_next().await.unwrap() {
        take(&row);
    }
}
