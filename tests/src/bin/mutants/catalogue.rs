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
        tests: &["zombies::a_step_of_a_worker_that_slept_through_its_lease_is_not_recorded"],
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
        tests: &["zombies::a_run_of_a_worker_that_slept_through_its_lease_is_not_ended_by_it"],
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
            "failovers::a_step_of_a_forgotten_claim_is_not_recorded_though_the_next_claim_has_its_number",
            "failovers::a_run_is_not_ended_by_a_forgotten_claim_though_the_next_claim_has_its_number",
        ],
    },
    Mutant {
        name: "no-reconcile",
        edits: &[Edit {
            file: "runledger/src/worker/upkeep/maintenance.rs",
            old: "unknown.retain(|lease| !self.in_flight.knows(lease.fence()));",
            new: "unknown.clear();",
        }],
        tests: &["lost_messages::a_run_whose_claim_was_never_answered_is_claimed_again"],
    },
    Mutant {
        name: "no-rollback-hook",
        edits: &[Edit {
            file: "runledger/src/connection/db.rs",
            old: "let reset = with_timeout(STATEMENT_LIMIT, sessions.reset(connection)).await;",
            new: "let reset: std::result::Result<(), sqlx::Error> = { let _ = (&sessions, connection); Ok(()) };",
        }],
        tests: &["enqueue::an_acknowledged_enqueue_survives_forgotten_transactions_of_the_same_pool"],
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
        tests: &["lost_messages::a_worker_whose_lock_session_is_lost_keeps_its_runs_while_its_heart_beats"],
    },
    Mutant {
        name: "no-orphan-sweep",
        edits: &[Edit {
            file: "runledger/src/worker/upkeep/orphans.rs",
            old: "worker::orphaned(connection, BATCH, search.left_out())",
            new: "worker::orphaned(connection, 0, search.left_out())",
        }],
        tests: &["crashes::the_runs_of_a_killed_worker_go_on_elsewhere"],
    },
    Mutant {
        name: "crash-costs-an-attempt",
        edits: &[Edit {
            file: "runledger/src/model/run/settle.rs",
            old: "Outcome::Crashed { progressed, blame } => after_crash(progressed, blame, unspent, unit_random),",
            new: "Outcome::Crashed { progressed, blame } => after_crash(progressed, blame, counters, unit_random),",
        }],
        tests: &["crashes::a_crash_costs_no_attempt"],
    },
    Mutant {
        name: "replay-ignores-order",
        edits: &[Edit {
            file: "runledger/src/engine/attempt.rs",
            old: "if progress.replay.may_deliver(ordinal) {",
            new: "if true || progress.replay.may_deliver(ordinal) {",
        }],
        tests: &["versions::a_replay_sees_the_winner_of_a_race_that_the_first_execution_saw"],
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
        tests: &["lost_messages::a_step_whose_record_was_never_acknowledged_goes_on_under_the_same_claim"],
    },
    Mutant {
        name: "record-again-as-fresh",
        edits: &[Edit {
            file: "runledger/src/worker/execute/writer.rs",
            old: "if is_repeated {",
            new: "if false && is_repeated {",
        }],
        tests: &[
            "lost_messages::a_step_whose_record_was_not_acknowledged_the_second_time_either_is_recorded_once",
        ],
    },
    Mutant {
        name: "enqueue-again-as-fresh",
        edits: &[Edit {
            file: "runledger/src/client/enqueue.rs",
            old: "Delivery::Unknown => submit_on_pool(db.pool(), batch, true, false).await",
            new: "Delivery::Unknown => submit_on_pool(db.pool(), batch, true, true).await",
        }],
        tests: &["enqueue::an_enqueue_whose_reply_is_lost_gives_the_run_that_it_has_made"],
    },
    Mutant {
        name: "child-started-once-only",
        edits: &[Edit {
            file: "runledger/src/store/sql/settle/start_child.sql",
            old: "    on conflict (run_id) do nothing\n",
            new: "",
        }],
        tests: &["lost_messages::a_child_whose_start_was_never_acknowledged_is_started_once"],
    },
    Mutant {
        name: "no-guard",
        edits: &[Edit {
            file: "runledger/src/engine/liveness.rs",
            old: "while !self.is_recent(&acknowledged.borrow_and_update()) {",
            new: "while false && !self.is_recent(&acknowledged.borrow_and_update()) {",
        }],
        tests: &["zombies::a_worker_that_slept_through_its_lease_begins_no_body_before_it_knows"],
    },
    Mutant {
        name: "enqueue-wakes-nobody",
        edits: &[Edit {
            file: "runledger/src/store/sql/enqueue/enqueue_fresh.sql",
            old: "where state = 'active' and sleeping\n",
            new: "where state = 'active' and sleeping and false\n",
        }],
        tests: &["enqueue::an_enqueue_wakes_one_sleeping_worker_a_run_and_one_more_of_those_that_serve_it"],
    },
    Mutant {
        name: "no-wake-of-parents",
        edits: &[Edit {
            file: "runledger/src/store/sql/settle/wake_parents.sql",
            old: "            waiting.wait_any operator(pg_catalog.&&) $1::uuid[]\n",
            new: "            waiting.wait_any operator(pg_catalog.&&) $1::uuid[] and false\n",
        }],
        tests: &["crashes::a_parent_is_woken_by_the_end_of_its_child_though_its_worker_is_killed"],
    },
    Mutant {
        name: "node-is-fed-again-in-each-slice",
        edits: &[Edit {
            file: "runledger/src/store/sql/claim/parts/claimed.sql",
            old: "run.node is not null and continuation.input is null then",
            new: "run.node is not null then",
        }],
        tests: &[
            "workflows::continuing::node_that_other_nodes_feed_continues_with_the_arguments_that_it_says",
        ],
    },
    Mutant {
        name: "node-is-queued-for-the-version-of-before",
        edits: &[Edit {
            file: "runledger/migrations/0001_initial/runs.sql",
            old: "language sql volatile",
            new: "language sql stable",
        }],
        tests: &[
            "workflows::versions::node_that_is_moved_while_what_it_needs_ends_is_queued_for_its_new_version",
        ],
    },
    Mutant {
        name: "woken-by-any-child",
        edits: &[Edit {
            file: "runledger/src/store/sql/settle/wake_parents.sql",
            old: "                and not exists (\n                    select\n                    from pg_catalog.unnest(waiting.wait_all)",
            new: "                or not exists (\n                    select\n                    from pg_catalog.unnest(waiting.wait_all)",
        }],
        tests: &["families::a_parent_is_woken_once_when_its_last_child_ends_though_workers_are_killed"],
    },
    Mutant {
        name: "node-starts-early",
        edits: &[Edit {
            file: "runledger/src/store/sql/graph/release.sql",
            old: "    select run_id from counted where remaining = 0\n",
            new: "    select run_id from counted where remaining >= 0\n",
        }],
        tests: &["families::a_node_starts_when_the_last_that_it_needs_has_ended_though_workers_are_killed"],
    },
    Mutant {
        name: "weight-is-lost",
        edits: &[Edit {
            file: "runledger/src/store/sql/graph/release.sql",
            old: "weight = graph_counter.weight + gain.weight",
            new: "weight = graph_counter.weight",
        }],
        tests: &["families::a_node_starts_when_the_last_that_it_needs_has_ended_though_workers_are_killed"],
    },
    Mutant {
        name: "recorded-runs-again",
        edits: &[Edit {
            file: "runledger/src/engine/step.rs",
            old: "Some(recorded) if claim.recorded => recorded,",
            new: "Some(recorded) if false && claim.recorded => recorded,",
        }],
        tests: &["crashes::the_runs_of_a_killed_worker_go_on_elsewhere"],
    },
    Mutant {
        name: "signal-taken-and-left",
        edits: &[Edit {
            file: "runledger/src/store/sql/step/take_signal.sql",
            old: "    set taken_by = held.key, taken_in = held.slice\n",
            new: "    set taken_by = taken_by\n",
        }],
        tests: &["lost_messages::a_signal_whose_taking_was_never_acknowledged_is_taken_once"],
    },
    Mutant {
        name: "signals-out-of-order",
        edits: &[Edit {
            file: "runledger/src/store/sql/step/signal_left.sql",
            old: "order by number\n",
            new: "order by number desc\n",
        }],
        tests: &["lost_messages::a_signal_whose_taking_was_never_acknowledged_is_taken_once"],
    },
    Mutant {
        name: "claims-anything",
        edits: &[Edit {
            file: "runledger/src/store/sql/claim/claim.sql",
            old: "            and ready.job = lane.job\n",
            new: "",
        }],
        tests: &["versions::a_run_of_an_unknown_job_stays_in_its_queue_untouched"],
    },
    Mutant {
        name: "companion-excuses-nobody",
        edits: &[Edit {
            file: "runledger/src/store/worker/mod.rs",
            old: "            && has_companion(tx, orphan.lease.run_id).await?",
            new: "            && has_companion(tx, orphan.lease.run_id).await? && false",
        }],
        tests: &[
            "it::suspects::suspect_is_blocked_unless_one_other_run_may_have_caused_its_last_three_crashes",
        ],
    },
    Mutant {
        name: "body-commits-without-record",
        edits: &[Edit {
            file: "runledger/src/engine/transaction.rs",
            old: "        Ok(false) => return unwritten(&mut tx, mark).await,\n",
            new: "        Ok(false) if false => return unwritten(&mut tx, mark).await,\n        Ok(false) => {}\n",
        }],
        tests: &[
            "it::fence::the_commit_of_an_old_attempts_transactional_job_is_refused_with_its_writes_and_submissions",
        ],
    },
    Mutant {
        // `calls::torn` finds this mutant.
        name: "enqueue-commits-the-callers-transaction",
        edits: &[Edit {
            file: "runledger/src/client/enqueue.rs",
            old: "    let Enqueued { created, isolation } = enqueue(",
            new: "    sqlx::raw_sql(\"commit; begin\").execute(&mut *connection).await?;\n    let Enqueued { created, isolation } = enqueue(",
        }],
        tests: &["enqueue::a_run_exists_if_and_only_if_the_callers_transaction_commits"],
    },
    Mutant {
        // `calls::doubled_keys` finds this mutant.
        name: "key-does-not-decide-the-run",
        edits: &[Edit {
            file: "runledger/src/model/run/request.rs",
            old: "    Uuid::new_v5(&KEYED_RUNS, name.as_bytes())",
            new: "    if name.is_empty() { Uuid::new_v5(&KEYED_RUNS, name.as_bytes()) } else { Uuid::now_v7() }",
        }],
        tests: &["enqueue::many_callers_of_one_key_get_one_run"],
    },
    Mutant {
        name: "panic-ends-the-process",
        edits: &[Edit {
            file: "runledger/src/connection/panic.rs",
            old: "    let called = caught(code, failure);",
            new: "    let called = caught(code, failure);\n    if called.is_err() {\n        std::process::abort();\n    }",
        }],
        tests: &["isolation::panicking_bodies_beside_a_canary_harm_only_themselves"],
    },
    Mutant {
        name: "heartbeat-among-the-bodies",
        edits: &[Edit {
            file: "runledger/src/worker/upkeep/heartbeat.rs",
            old: "        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;\n        std::thread::Builder::new()\n            .name(\"runledger-heartbeat\".to_owned())\n            .spawn(move || runtime.block_on(self.send_heartbeats()))?;\n",
            new: "        tokio::spawn(self.send_heartbeats());\n",
        }],
        tests: &[
            "isolation::a_worker_whose_threads_are_all_blocked_for_longer_than_its_lease_is_not_declared_dead",
        ],
    },
    Mutant {
        name: "compensated-in-the-order-of-the-steps",
        edits: &[Edit {
            file: "runledger/src/model/replay.rs",
            old: "self.compensations.iter().rev().filter(",
            new: "self.compensations.iter().filter(",
        }],
        tests: &["workflows::sagas::what_the_steps_of_a_failed_run_did_is_taken_back_in_reverse_order"],
    },
    Mutant {
        name: "permit-too-many",
        edits: &[Edit {
            file: "runledger/migrations/0001_initial/resources.sql",
            old: "where name operator(pg_catalog.=) $1), 1) as permits",
            new: "where name operator(pg_catalog.=) $1), 2) as permits",
        }],
        tests: &[
            "it::resources::a_resource_has_one_permit_for_all_jobs_queues_tenants_and_workers_and_the_rest_stay_queued_unconsumed",
        ],
    },
    Mutant {
        name: "fork-keeps-its-step",
        edits: &[Edit {
            file: "runledger/src/model/replay/history_prefix.rs",
            old: "let is_before = row.seen_len < seen_len",
            new: "let is_before = row.seen_len <= seen_len",
        }],
        tests: &["it::linked::a_workflow_can_be_forked_from_any_of_its_recorded_steps"],
    },
    Mutant {
        name: "payload-is-bound-to-no-step",
        edits: &[Edit {
            file: "runledger/src/model/payload/codec.rs",
            old: "        bytes.extend_from_slice(self.key.as_bytes());\n        bytes\n",
            new: "        bytes\n",
        }],
        tests: &["codec::keys::two_sealed_payloads_that_have_changed_places_do_not_open"],
    },
    Mutant {
        name: "verify-finds-nothing",
        edits: &[Edit {
            file: "runledger/src/model/replay/verification.rs",
            old: "if verdict != Verdict::Replays && !told",
            new: "if false && verdict != Verdict::Replays && !told",
        }],
        tests: &["workflows::verify::reading::runs_that_break_alike_are_counted_together_over_all_pages"],
    },
    Mutant {
        name: "gate-is-decided-before-it-is-open",
        edits: &[Edit {
            file: "runledger/src/store/sql/graph/gate_decide.sql",
            old: "        and not exists (select from runledger.graph_counter where graph_counter.run_id = $1 and graph_counter.remaining > 0)\n",
            new: "",
        }],
        tests: &[
            "graphs::graphs::completing_a_gate_twice_identically_is_accepted_and_a_different_outcome_is_refused",
        ],
    },
    Mutant {
        name: "revoked-link-decides",
        edits: &[Edit {
            file: "runledger/src/store/sql/graph/gate_decide.sql",
            old: "        and not (select is_late or is_revoked from link)\n",
            new: "        and not (select is_late from link)\n",
        }],
        tests: &["graphs::gate_link_revocations::decision_that_waits_for_revocation_to_commit_is_refused"],
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
        tests: &[
            "it::idempotency::the_same_key_with_any_changed_part_is_a_conflict_that_writes_nothing_and_names_the_difference",
        ],
    },
    Mutant {
        name: "key-is-of-all-tenants",
        edits: &[Edit {
            file: "runledger/src/model/run/request.rs",
            old: "let name = format!(\"{}:{tenant}{}:{job}{}:{key}\", tenant.len(), job.len(), key.len());",
            new: "let name = format!(\"{}:{job}{}:{key}{}\", job.len(), key.len(), &tenant[..0]);",
        }],
        tests: &[
            "it::idempotency::the_same_key_in_no_tenant_and_in_two_tenants_gives_three_independent_runs",
        ],
    },
    Mutant {
        name: "refused-record-fails-its-batch",
        edits: &[Edit {
            file: "runledger/src/worker/execute/writer.rs",
            old: "Err(_) if items.len() > 1 =>",
            new: "Err(_) if items.len() > MAX_BATCH =>",
        }],
        tests: &["it::unreadable::output_that_the_database_refuses_fails_its_run_and_no_other_of_its_batch"],
    },
    Mutant {
        name: "conflict-fails-the-body",
        edits: &[Edit {
            file: "runledger/src/engine/transaction.rs",
            old: "        return Ended::Undone(cause, None);\n    }\n    let Some(mut tx)",
            new: "        return Ended::ByStatement(cause);\n    }\n    let Some(mut tx)",
        }],
        tests: &["it::transactional::a_deadlock_runs_the_body_again_in_a_fresh_transaction"],
    },
    Mutant {
        name: "nothing-is-compensated",
        edits: &[Edit {
            file: "runledger/src/store/sql/settle/settle.sql",
            old: "runledger.needs_compensation(held.run_id) as needs_compensation",
            new: "false as needs_compensation",
        }],
        tests: &["workflows::sagas::what_the_steps_of_a_failed_run_did_is_taken_back_in_reverse_order"],
    },
    Mutant {
        name: "payload-stays-plain",
        edits: &[Edit {
            file: "runledger/src/model/payload/sealer.rs",
            old: "filter(|_| self.seals() || plain.has_secret())",
            new: "filter(|_| plain.has_secret())",
        }],
        tests: &["codec::everywhere::a_sealed_payload_is_in_no_table_and_in_no_log"],
    },
    Mutant {
        name: "gate-takes-another-value-later",
        edits: &[Edit {
            file: "runledger/src/graph/gate.rs",
            old: "if gate.state == state && is_same(&stored, &open) {",
            new: "if gate.state == state || is_same(&stored, &open) {",
        }],
        tests: &[
            "graphs::graphs::completing_a_gate_twice_identically_is_accepted_and_a_different_outcome_is_refused",
        ],
    },
    Mutant {
        name: "spoilt-session-is-used-again",
        edits: &[Edit {
            file: "runledger/src/store/session/mod.rs",
            old: "execute runledger_session; ",
            new: "",
        }],
        tests: &["it::session_reset::session_whose_prepared_statements_were_dropped_is_not_used_again"],
    },
    Mutant {
        name: "refused-compensation-is-repeated",
        edits: &[Edit {
            file: "runledger/src/worker/execute/executor.rs",
            old: "Err(AttemptEnd::Outcome(Outcome::Failed(refused, _))) =>",
            new: "Err(AttemptEnd::Outcome(Outcome::Failed(refused, _))) if false =>",
        }],
        tests: &["workflows::sagas::compensation_whose_record_the_database_refuses_parks_its_run"],
    },
    Mutant {
        name: "notification-is-obeyed-without-a-request",
        edits: &[Edit {
            file: "runledger/src/worker/upkeep/control.rs",
            old: "if asked.cancel {",
            new: "if asked.cancel || !asked.pause {",
        }],
        tests: &["it::roles::notification_of_a_role_without_rights_cancels_and_pauses_nothing"],
    },
    Mutant {
        name: "failed-claim-is-repeated-in-full",
        edits: &[Edit {
            file: "runledger/src/worker/claim/claim_cursors.rs",
            old: "(self.0 * 2).min(MAX_BATCH) } else { 1 }",
            new: "(self.0 * 2).min(MAX_BATCH) } else { MAX_BATCH }",
        }],
        tests: &["it::claim::runs_that_cannot_be_claimed_together_are_claimed_one_by_one"],
    },
    Mutant {
        name: "history-has-no-limit",
        edits: &[Edit {
            file: "runledger/src/model/replay/history_size.rs",
            old: "if self.bytes > MAX_HISTORY {",
            new: "if self.bytes > 8 * MAX_HISTORY {",
        }],
        tests: &["workflows::history_size::run_with_a_history_above_the_limit_is_blocked_and_others_go_on"],
    },
    Mutant {
        name: "unreadable-content-fails-every-claim",
        edits: &[Edit {
            file: "runledger/src/store/worker/claim.rs",
            old: "Err(_) => Self::Apart,",
            new: "Err(_) => Self::AtOnce,",
        }],
        tests: &["it::unreadable::run_whose_content_the_server_cannot_read_is_blocked_and_others_go_on"],
    },
    Mutant {
        name: "hidden-steps-are-repeated",
        edits: &[Edit {
            file: "runledger/src/store/session/mod.rs",
            old: "set statement_timeout = '30s'; set row_security = off; ",
            new: "set statement_timeout = '30s'; ",
        }],
        tests: &["it::roles::run_whose_steps_a_policy_hides_waits_and_repeats_no_step"],
    },
];
