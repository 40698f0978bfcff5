drop schema if exists hp cascade;
create schema hp;
create table hp.run (
  run_id uuid primary key,
  job text not null,
  tenant text not null,
  queue text not null,
  priority int2 not null,
  max_attempts int2 not null default 3,
  created_at timestamptz not null default now(),
  ready_at timestamptz not null,
  state text not null default 'queued',
  attempt int2 not null default 0,
  crashes int2 not null default 0,
  token uuid,
  worker int,
  started_at timestamptz,
  finished_at timestamptz,
  input json not null,
  output json,
  error json
) with (fillfactor = 80);
create index run_ready on hp.run (queue, job, priority, ready_at, run_id) where state = 'queued';
create index run_owner on hp.run (worker) where state = 'running';
