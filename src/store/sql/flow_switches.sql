-- flow_switches: what is paused, and whether rows are set aside for a source that is not.
-- Run by store::flow::switches at every poll, and when a pause or resume was signalled.
-- Rows: 1. Index delivery_aside, one probe per source that is not paused: with a million rows aside
-- nothing is counted.
SELECT ARRAY(SELECT id FROM oncehook.handler WHERE paused_at IS NOT NULL ORDER BY id) AS handlers,
       ARRAY(SELECT id FROM oncehook.source WHERE paused_at IS NOT NULL ORDER BY id) AS sources,
       EXISTS (SELECT FROM oncehook.source s
                CROSS JOIN LATERAL (SELECT FROM oncehook.delivery WHERE paused_source = s.id LIMIT 1) d
                WHERE s.paused_at IS NULL) AS left_aside
