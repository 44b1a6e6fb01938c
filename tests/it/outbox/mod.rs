//! Events that are emitted inside a transaction: there with the effect or not at all, and handled
//! like any other.

mod crash;
mod emit;
mod relay;

/// Each handler writes a line and emits the next event of the chain: a, b, c.
const CHAIN: &str = "
CREATE SCHEMA app;
CREATE TABLE app.line (handler text NOT NULL, key text NOT NULL);
CREATE TABLE app.broken (key text PRIMARY KEY);
CREATE FUNCTION app.first(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.line VALUES ('first', event.key);
  PERFORM oncehook.emit('orders', 'b:' || event.key, 'order.paid', jsonb_build_object('n', 1, 'of', event.key), event.entity, cause => event);
  IF EXISTS (SELECT FROM app.broken WHERE key = event.key) THEN RAISE EXCEPTION 'no such account' USING ERRCODE = 'OH001'; END IF;
END $$;
CREATE FUNCTION app.second(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.line VALUES ('second', event.key);
  PERFORM oncehook.emit('ledger', 'c:' || event.key, 'entry.made', oncehook.body_json(event), cause => event);
END $$;
CREATE FUNCTION app.third(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.line VALUES ('third', event.key);
END $$;
";
