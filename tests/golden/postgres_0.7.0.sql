-- What version 0.7.0 leaves in a database: two queries of pipeline `orders`, one of pipeline `returns`, and a row that
-- the table refused in the last batch of `orders`, killed before its quarantine.
CREATE TABLE public.out (id bigint, v varchar(3), _penstock jsonb);
INSERT INTO public.out VALUES
    (0, 'a', '{"topic": "orders", "offset": 0, "partition": 0, "timestamp": "2026-01-01T00:00:00.000000Z"}'),
    (1, 'b', '{"topic": "orders", "offset": 1, "partition": 0, "timestamp": "2026-01-01T00:00:00.000000Z"}'),
    (2, 'c', '{"topic": "orders", "offset": 2, "partition": 0, "timestamp": "2026-01-01T00:00:00.000000Z"}'),
    (4, 'd', '{"topic": "orders", "offset": 4, "partition": 0, "timestamp": "2026-01-01T00:00:00.000000Z"}'),
    (100, 'r', '{"topic": "returns", "offset": 7, "partition": 0, "timestamp": "2026-01-01T00:00:00.000000Z"}');
CREATE SCHEMA penstock;
CREATE TABLE penstock.penstock_commits (
    pipeline text, sink text, target text, query_id text, batch_id bigint NOT NULL, token jsonb NOT NULL,
    committed_at timestamptz NOT NULL, PRIMARY KEY (pipeline, sink, target, query_id));
INSERT INTO penstock.penstock_commits VALUES
    ('orders', 'out', 'public.out', '11111111-2222-3333-4444-555555555555', 0,
     '{"ranges": [["orders", 0, 0, 2], ["orders", 1, 0, 1]], "batch_id": 0, "pipeline": "orders", "query_id": "11111111-2222-3333-4444-555555555555"}',
     '2026-01-01 01:08:42.023733+00'),
    ('orders', 'out', 'public.out', '66666666-7777-8888-9999-000000000000', 0,
     '{"ranges": [["orders", 0, 2, 5]], "batch_id": 0, "pipeline": "orders", "query_id": "66666666-7777-8888-9999-000000000000"}',
     '2026-01-01 01:08:42.06709+00'),
    ('returns', 'out', 'public.out', '11111111-2222-3333-4444-555555555555', 3,
     '{"ranges": [["returns", 0, 7, 8]], "batch_id": 3, "pipeline": "returns", "query_id": "11111111-2222-3333-4444-555555555555"}',
     '2026-01-01 01:08:42.124246+00');
CREATE TABLE penstock.penstock_rejects (
    pipeline text NOT NULL, sink text NOT NULL, target text NOT NULL, query_id text NOT NULL,
    batch_id bigint NOT NULL, topic text NOT NULL, "partition" integer NOT NULL, "offset" bigint NOT NULL,
    code text NOT NULL, message text NOT NULL);
CREATE INDEX penstock_rejects_of_a_batch ON penstock.penstock_rejects (pipeline, sink, target, query_id, batch_id);
INSERT INTO penstock.penstock_rejects VALUES
    ('orders', 'out', 'public.out', '66666666-7777-8888-9999-000000000000', 0, 'orders', 0, 3, 'SINK_ROW_REFUSED',
     'sink out: value too long for type character varying(3)');
