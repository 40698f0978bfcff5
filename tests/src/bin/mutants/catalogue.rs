//! The defects of the engine, each with the tests that must find it.

use super::mutant::{Edit, Mutant};

/// No other check of the protocol finds the first three.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "unfenced-checkpoint",
        edits: &[
            Edit {
                file: "runledger/src/store/sql/step/checkpoint.sql",
                old: "where run_id = item.run_id and token = item.token",
                new: "where run_id = item.run_id",
            },
            Edit {
                file: "runledger/src/store/sql/step/checkpoint_fresh.sql",
                old: "where run_id = item.run_id and token = item.token",
                new: "where run_id = item.run_id",
            },
        ],
        tests: &["zombies::stale_worker_cannot_record_step"],
    },
    Mutant {
        name: "unfenced-settle",
        edits: &[
            Edit {
                file: "runledger/src/store/sql/settle/settle.sql",
                old: "where run_id = item.run_id and token = item.token offset 0",
                new: "where run_id = item.run_id offset 0",
            },
            Edit {
                file: "runledger/src/store/sql/settle/settle_completed.sql",
                old: "where run_id = item.run_id and token = item.token offset 0",
                new: "where run_id = item.run_id offset 0",
            },
        ],
        tests: &["zombies::stale_worker_cannot_complete_reclaimed_run"],
    },
    Mutant {
        // Every statement compares the claim number instead of the random token.
        name: "integer-fence",
        edits: &[
            Edit {
                file: "runledger/src/store/sql/claim/claim.sql",
                old: "select run_id, $2::uuid, $1,",
                new: "select run_id, coalesce(lpad(to_hex(claims + 1), 32, '0')::uuid, $2::uuid), $1,",
            },
            Edit {
                file: "runledger/src/store/worker/claim.rs",
                old: "    pub(crate) claimed_at: Timestamp,\n",
                new: "    pub(crate) claimed_at: Timestamp,\n    pub(crate) claims: i32,\n",
            },
            Edit {
                file: "runledger/src/store/worker/claim.rs",
                old: "        claimed_at: row.try_get(\"claimed_at\")?,\n",
                new: "        claimed_at: row.try_get(\"claimed_at\")?,\n        claims: row.try_get(\"claims\")?,\n",
            },
            Edit {
                file: "runledger/src/worker/claim/claimer.rs",
                old: "self.executor.in_flight.add(Fence { run_id: run.run_id, token })",
                new: "self.executor.in_flight.add(Fence { run_id: run.run_id, token: Uuid::from_u128(u128::from(run.claims.unsigned_abs())) })",
            },
        ],
        tests: &[
            "failovers::lost_claim_cannot_record_step_despite_equal_claim_number",
            "failovers::lost_claim_cannot_complete_run_despite_equal_claim_number",
        ],
    },
    Mutant {
        name: "no-reconcile",
        edits: &[Edit {
            file: "runledger/src/worker/upkeep/maintenance.rs",
            old: "unknown.retain(|lease| !self.in_flight.knows(lease.fence()));",
            new: "unknown.clear();",
        }],
        tests: &["lost_messages::run_with_lost_claim_reply_is_claimed_again"],
    },
    Mutant {
        name: "no-rollback-hook",
        edits: &[Edit {
            file: "runledger/src/connection/db.rs",
            old: "let reset = with_timeout(STATEMENT_LIMIT, sessions.reset(connection)).await;",
            new: "let reset: std::result::Result<(), sqlx::Error> = { let _ = (&sessions, connection); Ok(()) };",
        }],
        tests: &["enqueue::acknowledged_enqueue_survives_dropped_transactions_of_same_pool"],
    },
    Mutant {
        name: "free-lock-is-death",
        edits: &[
            Edit {
                file: "runledger/src/worker/upkeep/heartbeat.rs",
                old: "let overdue = self.timings.overdue().as_secs_f64();",
                new: "let overdue = 0.0;",
            },
            Edit {
                file: "runledger/src/worker/upkeep/maintenance.rs",
                old: "let suspect_after = self.timings.suspect.as_secs_f64();",
                new: "let suspect_after = 0.0;",
            },
        ],
        tests: &["lost_messages::worker_without_lock_session_keeps_runs_while_heartbeats_continue"],
    },
    Mutant {
        name: "no-orphan-sweep",
        edits: &[Edit {
            file: "runledger/src/worker/upkeep/orphans.rs",
            old: "worker::orphaned(connection, BATCH, search.left_out())",
            new: "worker::orphaned(connection, 0, search.left_out())",
        }],
        tests: &["crashes::run_of_killed_worker_resumes_on_another_process"],
    },
    Mutant {
        name: "crash-costs-an-attempt",
        edits: &[Edit {
            file: "runledger/src/model/run/settle.rs",
            old: "Outcome::Crashed { progressed, blame } => after_crash(progressed, blame, unspent, unit_random),",
            new: "Outcome::Crashed { progressed, blame } => after_crash(progressed, blame, counters, unit_random),",
        }],
        tests: &["crashes::crash_consumes_no_attempt"],
    },
    Mutant {
        name: "replay-ignores-order",
        edits: &[Edit {
            file: "runledger/src/engine/attempt.rs",
            old: "if progress.replay.may_deliver(ordinal) {",
            new: "if true || progress.replay.may_deliver(ordinal) {",
        }],
        tests: &["versions::replay_sees_same_race_winner_as_first_execution"],
    },
    Mutant {
        name: "own-record-is-conflict",
        edits: &[
            Edit {
                file: "runledger/src/store/sql/step/checkpoint.sql",
                old: "    on conflict (run_id, key) do nothing\n)",
                new: "    on conflict (run_id, key) do nothing\n    returning run_id, key\n)",
            },
            Edit {
                file: "runledger/src/store/sql/step/checkpoint.sql",
                old: "end as restless\nfrom held",
                new: "end as restless\nfrom held\nwhere (run_id, key) in (select run_id, key from recorded)",
            },
        ],
        tests: &["lost_messages::step_with_lost_acknowledgement_continues_under_same_claim"],
    },
    Mutant {
        name: "record-again-as-fresh",
        edits: &[Edit {
            file: "runledger/src/worker/execute/writer.rs",
            old: "if is_repeated {",
            new: "if false && is_repeated {",
        }],
        tests: &["lost_messages::step_with_two_lost_acknowledgements_is_recorded_once"],
    },
    Mutant {
        name: "enqueue-again-as-fresh",
        edits: &[Edit {
            file: "runledger/src/client/enqueue.rs",
            old: "Delivery::Unknown => submit_on_pool(db.pool(), batch, true, false).await",
            new: "Delivery::Unknown => submit_on_pool(db.pool(), batch, true, true).await",
        }],
        tests: &["enqueue::enqueue_with_lost_reply_returns_created_run"],
    },
    Mutant {
        name: "child-started-once-only",
        edits: &[Edit {
            file: "runledger/src/store/sql/settle/start_child.sql",
            old: "    on conflict (run_id) do nothing\n",
            new: "",
        }],
        tests: &["lost_messages::child_with_lost_start_acknowledgement_starts_once"],
    },
    Mutant {
        name: "no-guard",
        edits: &[Edit {
            file: "runledger/src/engine/liveness.rs",
            old: "while !self.is_recent(&acknowledged.borrow_and_update()) {",
            new: "while false && !self.is_recent(&acknowledged.borrow_and_update()) {",
        }],
        tests: &["zombies::stale_worker_starts_no_body_before_noticing_lost_lease"],
    },
    Mutant {
        name: "enqueue-wakes-nobody",
        edits: &[Edit {
            file: "runledger/src/store/sql/enqueue/enqueue_fresh.sql",
            old: "where state = 'active' and sleeping\n",
            new: "where state = 'active' and sleeping and false\n",
        }],
        tests: &["enqueue::enqueue_wakes_one_sleeping_serving_worker_per_run_plus_one"],
    },
    Mutant {
        name: "no-wake-of-parents",
        edits: &[Edit {
            file: "runledger/src/store/sql/settle/wake_parents.sql",
            old: "            waiting.wait_any operator(pg_catalog.&&) $1::uuid[]\n",
            new: "            waiting.wait_any operator(pg_catalog.&&) $1::uuid[] and false\n",
        }],
        tests: &["crashes::child_completion_wakes_waiting_parent_although_worker_was_killed"],
    },
    Mutant {
        name: "node-is-fed-again-in-each-slice",
        edits: &[Edit {
            file: "runledger/src/store/sql/claim/parts/claimed.sql",
            old: "run.node is not null and continuation.input is null then",
            new: "run.node is not null then",
        }],
        tests: &["workflows::continuing::dependent_node_continues_as_new_with_arguments_it_passes"],
    },
    Mutant {
        name: "node-is-queued-for-the-version-of-before",
        edits: &[Edit {
            file: "runledger/migrations/0001_initial/runs.sql",
            old: "language sql volatile",
            new: "language sql stable",
        }],
        tests: &["workflows::versions::node_pinned_while_dependency_completes_is_queued_in_new_version"],
    },
    Mutant {
        name: "woken-by-any-child",
        edits: &[Edit {
            file: "runledger/src/store/sql/settle/wake_parents.sql",
            old: "                and not exists (\n                    select\n                    from pg_catalog.unnest(waiting.wait_all)",
            new: "                or not exists (\n                    select\n                    from pg_catalog.unnest(waiting.wait_all)",
        }],
        tests: &["families::last_child_completion_wakes_parent_once_although_workers_are_killed"],
    },
    Mutant {
        name: "node-starts-early",
        edits: &[Edit {
            file: "runledger/src/store/sql/graph/release.sql",
            old: "    select run_id from counted where remaining = 0\n",
            new: "    select run_id from counted where remaining >= 0\n",
        }],
        tests: &["families::node_starts_after_last_dependency_although_workers_are_killed"],
    },
    Mutant {
        name: "weight-is-lost",
        edits: &[Edit {
            file: "runledger/src/store/sql/graph/release.sql",
            old: "weight = weight + ((select weight from gains) ->> run_id::text)::integer",
            new: "weight = weight",
        }],
        tests: &["families::node_starts_after_last_dependency_although_workers_are_killed"],
    },
    Mutant {
        name: "recorded-runs-again",
        edits: &[Edit {
            file: "runledger/src/engine/step.rs",
            old: "Some(recorded) if claim.recorded => recorded,",
            new: "Some(recorded) if false && claim.recorded => recorded,",
        }],
        tests: &["crashes::run_of_killed_worker_resumes_on_another_process"],
    },
    Mutant {
        name: "signal-taken-and-left",
        edits: &[Edit {
            file: "runledger/src/store/sql/step/take_signal.sql",
            old: "    set taken_by = held.key, taken_in = held.slice\n",
            new: "    set taken_by = taken_by\n",
        }],
        tests: &["lost_messages::signal_with_lost_consumption_reply_is_consumed_once"],
    },
    Mutant {
        name: "signals-out-of-order",
        edits: &[Edit {
            file: "runledger/src/store/sql/step/signal_left.sql",
            old: "order by number\n",
            new: "order by number desc\n",
        }],
        tests: &["lost_messages::signal_with_lost_consumption_reply_is_consumed_once"],
    },
    Mutant {
        name: "claims-anything",
        edits: &[Edit {
            file: "runledger/src/store/sql/claim/claim.sql",
            old: "            and ready.job = lane.job\n",
            new: "",
        }],
        tests: &["versions::run_of_unknown_job_stays_queued_and_unclaimed"],
    },
    Mutant {
        name: "companion-excuses-nobody",
        edits: &[Edit {
            file: "runledger/src/store/worker/mod.rs",
            old: "            && has_companion(tx, orphan.lease.run_id).await?",
            new: "            && has_companion(tx, orphan.lease.run_id).await? && false",
        }],
        tests: &["it::suspects::suspect_is_blocked_unless_one_other_run_may_explain_crashes"],
    },
    Mutant {
        name: "body-commits-without-record",
        edits: &[Edit {
            file: "runledger/src/engine/transaction.rs",
            old: "        Ok(false) => return unwritten(&mut tx, mark).await,\n",
            new: "        Ok(false) if false => return unwritten(&mut tx, mark).await,\n        Ok(false) => {}\n",
        }],
        tests: &["it::fence::stale_attempt_cannot_commit_transactional_job_or_its_enqueues"],
    },
    Mutant {
        // `calls::torn` finds this mutant.
        name: "enqueue-commits-the-callers-transaction",
        edits: &[Edit {
            file: "runledger/src/client/enqueue.rs",
            old: "    let Enqueued { created, isolation } = enqueue(",
            new: "    sqlx::raw_sql(\"commit; begin\").execute(&mut *connection).await?;\n    let Enqueued { created, isolation } = enqueue(",
        }],
        tests: &["enqueue::run_exists_exactly_when_callers_transaction_commits"],
    },
    Mutant {
        // `calls::doubled_keys` finds this mutant.
        name: "key-does-not-decide-the-run",
        edits: &[Edit {
            file: "runledger/src/model/run/request.rs",
            old: "    Uuid::new_v5(&KEYED_RUNS, name.as_bytes())",
            new: "    if name.is_empty() { Uuid::new_v5(&KEYED_RUNS, name.as_bytes()) } else { Uuid::now_v7() }",
        }],
        tests: &["enqueue::concurrent_enqueues_with_one_key_create_one_run"],
    },
    Mutant {
        name: "panic-ends-the-process",
        edits: &[Edit {
            file: "runledger/src/connection/panic.rs",
            old: "    let called = caught(code, failure);",
            new: "    let called = caught(code, failure);\n    if called.is_err() {\n        std::process::abort();\n    }",
        }],
        tests: &["isolation::panicking_body_does_not_affect_other_runs_or_worker"],
    },
    Mutant {
        name: "heartbeat-among-the-bodies",
        edits: &[Edit {
            file: "runledger/src/worker/upkeep/heartbeat.rs",
            old: "        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;\n        std::thread::Builder::new()\n            .name(\"runledger-heartbeat\".to_owned())\n            .spawn(move || runtime.block_on(self.send_heartbeats()))?;\n",
            new: "        tokio::spawn(self.send_heartbeats());\n",
        }],
        tests: &["isolation::worker_with_blocked_threads_beyond_lease_is_not_declared_dead"],
    },
    Mutant {
        name: "compensated-in-the-order-of-the-steps",
        edits: &[Edit {
            file: "runledger/src/model/replay.rs",
            old: "self.compensations.iter().rev().filter(",
            new: "self.compensations.iter().filter(",
        }],
        tests: &["workflows::sagas::failed_run_is_compensated_in_reverse_order"],
    },
    Mutant {
        name: "permit-too-many",
        edits: &[Edit {
            file: "runledger/migrations/0001_initial/resources.sql",
            old: "where name operator(pg_catalog.=) $1), 1) as permits",
            new: "where name operator(pg_catalog.=) $1), 2) as permits",
        }],
        tests: &["it::resources::resource_defaults_to_one_permit_across_jobs_queues_tenants_workers"],
    },
    Mutant {
        name: "fork-keeps-its-step",
        edits: &[Edit {
            file: "runledger/src/model/replay/history_prefix.rs",
            old: "let is_before = row.seen_len < seen_len",
            new: "let is_before = row.seen_len <= seen_len",
        }],
        tests: &["it::linked::workflow_can_be_forked_from_any_recorded_step"],
    },
    Mutant {
        name: "payload-is-bound-to-no-step",
        edits: &[Edit {
            file: "runledger/src/model/payload/codec.rs",
            old: "        bytes.extend_from_slice(self.key.as_bytes());\n        bytes\n",
            new: "        bytes\n",
        }],
        tests: &["codec::keys::swapped_encrypted_payloads_do_not_decrypt"],
    },
    Mutant {
        name: "verify-finds-nothing",
        edits: &[Edit {
            file: "runledger/src/model/replay/verification.rs",
            old: "if verdict != Verdict::Replays && !told",
            new: "if false && verdict != Verdict::Replays && !told",
        }],
        tests: &["workflows::verify::reading::runs_breaking_alike_share_one_finding_over_all_pages"],
    },
    Mutant {
        name: "gate-is-decided-before-it-is-open",
        edits: &[Edit {
            file: "runledger/src/store/sql/graph/gate_decide.sql",
            old: "        and not exists (select from runledger.graph_counter where graph_counter.run_id = $1 and graph_counter.remaining > 0)\n",
            new: "",
        }],
        tests: &["graphs::graphs::gate_accepts_repeated_identical_decision_and_refuses_different_one"],
    },
    Mutant {
        name: "revoked-link-decides",
        edits: &[Edit {
            file: "runledger/src/store/sql/graph/gate_decide.sql",
            old: "        and not (select is_late or is_revoked from link)\n",
            new: "        and not (select is_late from link)\n",
        }],
        tests: &["graphs::gate_link_revocations::decision_waiting_for_revocation_commit_is_refused"],
    },
    Mutant {
        name: "bound-link-takes-another-decision",
        edits: &[Edit {
            file: "runledger/src/graph/gate.rs",
            old: "Some(bound) if !is_same(bound) => {",
            new: "Some(bound) if false && !is_same(bound) => {",
        }],
        tests: &["graphs::gate_link_decisions::bound_link_refuses_every_other_decision"],
    },
    Mutant {
        name: "key-takes-any-request",
        edits: &[Edit {
            file: "runledger/src/client/enqueue.rs",
            old: "    match difference {\n        None => Ok(()),",
            new: "    match difference.filter(|_| false) {\n        None => Ok(()),",
        }],
        tests: &["it::idempotency::keyed_conflict_names_changed_part_and_writes_nothing"],
    },
    Mutant {
        name: "key-is-of-all-tenants",
        edits: &[Edit {
            file: "runledger/src/model/run/request.rs",
            old: "let name = format!(\"{}:{tenant}{}:{job}{}:{key}\", tenant.len(), job.len(), key.len());",
            new: "let name = format!(\"{}:{job}{}:{key}{}\", job.len(), key.len(), &tenant[..0]);",
        }],
        tests: &["it::idempotency::same_key_in_different_tenants_creates_independent_runs"],
    },
    Mutant {
        name: "refused-record-fails-its-batch",
        edits: &[Edit {
            file: "runledger/src/worker/execute/writer.rs",
            old: "Err(_) if items.len() > 1 =>",
            new: "Err(_) if items.len() > MAX_BATCH =>",
        }],
        tests: &["it::unreadable::output_refused_by_database_fails_only_its_run_in_batch"],
    },
    Mutant {
        name: "conflict-fails-the-body",
        edits: &[Edit {
            file: "runledger/src/engine/transaction.rs",
            old: "        return Ended::Undone(cause, None);\n    }\n    let Some(mut tx)",
            new: "        return Ended::ByStatement(cause);\n    }\n    let Some(mut tx)",
        }],
        tests: &["it::transactional::deadlock_repeats_body_in_fresh_transaction"],
    },
    Mutant {
        name: "nothing-is-compensated",
        edits: &[Edit {
            file: "runledger/src/store/sql/settle/settle.sql",
            old: "runledger.needs_compensation(held.run_id) as needs_compensation",
            new: "false as needs_compensation",
        }],
        tests: &["workflows::sagas::failed_run_is_compensated_in_reverse_order"],
    },
    Mutant {
        name: "payload-stays-plain",
        edits: &[Edit {
            file: "runledger/src/model/payload/sealer.rs",
            old: "filter(|_| self.seals() || plain.has_secret())",
            new: "filter(|_| plain.has_secret())",
        }],
        tests: &["codec::everywhere::encrypted_payload_appears_in_no_table_or_log"],
    },
    Mutant {
        name: "gate-takes-another-value-later",
        edits: &[Edit {
            file: "runledger/src/graph/gate.rs",
            old: "if gate.state == state && is_same(&stored, &open) {",
            new: "if gate.state == state || is_same(&stored, &open) {",
        }],
        tests: &["graphs::graphs::gate_accepts_repeated_identical_decision_and_refuses_different_one"],
    },
    Mutant {
        name: "spoilt-session-is-used-again",
        edits: &[Edit {
            file: "runledger/src/store/session/mod.rs",
            old: "execute runledger_session; ",
            new: "",
        }],
        tests: &["it::session_reset::session_with_deallocated_prepared_statements_is_not_reused"],
    },
    Mutant {
        name: "refused-compensation-is-repeated",
        edits: &[Edit {
            file: "runledger/src/worker/execute/executor.rs",
            old: "Err(AttemptEnd::Outcome(Outcome::Failed(refused, _))) =>",
            new: "Err(AttemptEnd::Outcome(Outcome::Failed(refused, _))) if false =>",
        }],
        tests: &["workflows::sagas::compensation_whose_record_is_refused_blocks_run"],
    },
    Mutant {
        name: "notification-is-obeyed-without-a-request",
        edits: &[Edit {
            file: "runledger/src/worker/upkeep/control.rs",
            old: "if asked.cancel {",
            new: "if asked.cancel || !asked.pause {",
        }],
        tests: &["it::roles::notification_from_unprivileged_role_cancels_or_pauses_no_run"],
    },
    Mutant {
        name: "failed-claim-is-repeated-in-full",
        edits: &[Edit {
            file: "runledger/src/worker/claim/claim_cursors.rs",
            old: "(self.0 * 2).min(MAX_BATCH) } else { 1 }",
            new: "(self.0 * 2).min(MAX_BATCH) } else { MAX_BATCH }",
        }],
        tests: &["it::claim::runs_refused_as_batch_are_claimed_separately"],
    },
    Mutant {
        name: "history-has-no-limit",
        edits: &[Edit {
            file: "runledger/src/model/replay/history_size.rs",
            old: "if self.bytes > MAX_HISTORY {",
            new: "if self.bytes > 8 * MAX_HISTORY {",
        }],
        tests: &["workflows::history_size::run_with_oversized_history_is_blocked_and_others_proceed"],
    },
    Mutant {
        name: "unreadable-content-fails-every-claim",
        edits: &[Edit {
            file: "runledger/src/store/worker/claim.rs",
            old: "Err(_) => Self::Apart,",
            new: "Err(_) => Self::AtOnce,",
        }],
        tests: &["it::unreadable::run_with_content_read_error_is_blocked_and_others_continue"],
    },
    Mutant {
        name: "hidden-steps-are-repeated",
        edits: &[Edit {
            file: "runledger/src/store/session/mod.rs",
            old: "set statement_timeout = '30s'; set row_security = off; ",
            new: "set statement_timeout = '30s'; ",
        }],
        tests: &["it::roles::run_waits_without_repeating_steps_while_row_security_hides_them"],
    },
];
