-- The values that gates accept, for programs that decide a gate without having its type. A gate without a row accepts any value: it is older than this table, or
-- a program that does not know this table declared it.
create table runledger.gate (
    run_id uuid primary key,
    accepts json not null
);
