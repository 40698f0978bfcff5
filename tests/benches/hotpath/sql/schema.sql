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
  start_at timestamptz not null,
  input json not null
);
create table hp.ready (
  run_id uuid not null primary key,
  queue text not null,
  job text not null,
  priority int2 not null,
  ready_at timestamptz not null,
  attempt int2 not null default 0,
  crashes int2 not null default 0,
  resumed bool not null default false
);
create index ready_ix on hp.ready (queue, job, priority, ready_at, run_id);
create table hp.lease (
  run_id uuid primary key,
  token uuid not null,
  worker int not null,
  attempt int2 not null,
  crashes int2 not null,
  claimed_at timestamptz not null
);
create index lease_worker on hp.lease (worker);
create table hp.outcome (
  run_id uuid primary key,
  state text not null check (state in ('completed', 'failed', 'cancelled')),
  output json,
  error json,
  attempt int2 not null,
  worker int,
  started_at timestamptz,
  finished_at timestamptz not null
);
create table hp.step (
  run_id uuid not null,
  key text not null,
  output json not null,
  fingerprint int8 not null,
  attempt int2 not null,
  recorded_at timestamptz not null,
  primary key (run_id, key)
);
create table hp.worker (worker int primary key, seen_at timestamptz not null);
insert into hp.worker values (1, now());
