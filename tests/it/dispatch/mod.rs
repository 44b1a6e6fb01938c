//! From a ready delivery to its outcome.

mod answers;
mod function;
mod newer;
mod not_yet;
mod parts;
mod refused;
mod session;
mod sql;
mod transient;

/// A ledger without any conflict clause: a second booking of an event shows as a second row.
pub(crate) const LEDGER: &str = "
CREATE SCHEMA app;
CREATE TABLE app.ledger (event_id uuid NOT NULL, key text NOT NULL, amount bigint, effect_key text NOT NULL, attempt int NOT NULL);
CREATE FUNCTION app.book(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.ledger VALUES (event.id, event.key,
    (oncehook.body_json(event) -> 'data' -> 'object' ->> 'amount')::bigint, event.effect_key, event.attempt);
END $$;
";
