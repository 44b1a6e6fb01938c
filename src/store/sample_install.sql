-- sample_install: what `oncehook dev` books into, so that the first event has an effect to look at.
-- Run by store::sample::install at every start of `dev`; repeatable, keeps what is booked.
-- Names: a table app.ledger, a function app.book_payment for a `sql` handler.
CREATE SCHEMA IF NOT EXISTS app;

CREATE TABLE IF NOT EXISTS app.ledger (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id   uuid NOT NULL,
  source     text NOT NULL,
  event_key  text NOT NULL,
  event_type text,
  amount     numeric,               -- as the provider counts: minor units for Stripe and Adyen
  currency   text,
  reference  text,                  -- the provider's id of what was paid
  booked_at  timestamptz NOT NULL DEFAULT now()
);

-- A plain insert on purpose: no unique constraint and no conflict clause hide a second run.
CREATE OR REPLACE FUNCTION app.book_payment(event oncehook.delivered) RETURNS void
  LANGUAGE plpgsql AS $$
DECLARE
  body   jsonb := oncehook.body_json(event);
  -- Stripe: data.object; Adyen: the notification item itself; others: data.
  item   jsonb := coalesce(body #> '{data,object}', body -> 'NotificationRequestItem', body -> 'data', body);
  amount text  := coalesce(
    item #>> '{amount,value}', item ->> 'amount', item ->> 'amount_total', item ->> 'amount_paid', item ->> 'total',
    body ->> 'amount');
BEGIN
  INSERT INTO app.ledger (event_id, source, event_key, event_type, amount, currency, reference)
  VALUES (
    event.id, event.source, event.key, event.type,
    CASE WHEN amount ~ '^-?[0-9]{1,18}(\.[0-9]{1,9})?$' THEN amount::numeric END,
    upper(left(coalesce(item #>> '{amount,currency}', item ->> 'currency', body ->> 'currency'), 3)),
    coalesce(event.entity, item ->> 'id', item ->> 'pspReference', item ->> 'order_id', body ->> 'id'));
END $$;
