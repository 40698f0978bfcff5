//! The defects, each with the tests that must find it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// One replacement of text, which matches exactly once.
pub struct Edit {
    pub file: &'static str,
    pub old: &'static str,
    pub new: &'static str,
}

/// A deliberate defect.
pub struct Mutant {
    pub name: &'static str,
    pub edits: &'static [Edit],
    /// Tests of `checks`, every one of which must be red.
    pub tests: &'static [&'static str],
}

impl Mutant {
    /// Whether it can still be put into these sources, and its tests are there: what it names moves as the code does.
    pub fn check(&self, root: &Path) -> Result<()> {
        let name = self.name;
        let read = |file: &str| {
            fs::read_to_string(root.join(file)).with_context(|| format!("mutant `{name}`: `{file}`"))
        };
        for Edit { file, old, new } in self.edits {
            let n_matches = read(file)?.matches(old).count();
            ensure!(n_matches == 1, "mutant `{name}` matches {n_matches} times in {file}, not once: {old}");
            ensure!(old != new, "mutant `{name}` changes nothing in {file}");
        }
        ensure!(!self.edits.is_empty() && !self.tests.is_empty(), "mutant `{name}` has no edit or no test");
        for test in self.tests {
            let (module, function) = test.split_once("::").with_context(|| format!("`{test}`"))?;
            let text = read(&format!("tests/checks/{module}.rs"))?;
            let head = format!("async fn {function}(");
            let mut tests = text.split("#[tokio::test").skip(1).filter_map(|test| test.split_once('\n'));
            ensure!(
                tests.any(|(_, test)| test.starts_with(&head)),
                "mutant `{name}` names `{test}`, which is no test"
            );
        }
        Ok(())
    }
}

/// Every defect. The first three are those that no other check of the protocol would notice.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "unfenced-checkpoint",
        edits: &[
            Edit {
                file: "runledger/src/store/sql/checkpoint.sql",
                old: "where run_id = item.run_id and token = item.token",
                new: "where run_id = item.run_id",
            },
            Edit {
                file: "runledger/src/store/sql/checkpoint_fresh.sql",
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
                file: "runledger/src/store/sql/settle.sql",
                old: "where run_id = item.run_id and token = item.token offset 0",
                new: "where run_id = item.run_id offset 0",
            },
            Edit {
                file: "runledger/src/store/sql/settle_completed.sql",
                old: "where run_id = item.run_id and token = item.token offset 0",
                new: "where run_id = item.run_id offset 0",
            },
        ],
        tests: &["zombies::a_run_of_a_worker_that_slept_through_its_lease_is_not_ended_by_it"],
    },
    Mutant {
        // The number of the claim in the place of the random token, in every statement at once.
        name: "integer-fence",
        edits: &[
            Edit {
                file: "runledger/src/store/sql/claim.sql",
                old: "select run_id, $2::uuid, $1,",
                new: "select run_id, coalesce(lpad(to_hex(claims + 1), 32, '0')::uuid, $2::uuid), $1,",
            },
            Edit {
                file: "runledger/src/store/claim.rs",
                old: "    pub(crate) claimed_at: Timestamp,\n",
                new: "    pub(crate) claimed_at: Timestamp,\n    pub(crate) claims: i32,\n",
            },
            Edit {
                file: "runledger/src/store/claim.rs",
                old: "        claimed_at: row.try_get(\"claimed_at\")?,\n",
                new: "        claimed_at: row.try_get(\"claimed_at\")?,\n        claims: row.try_get(\"claims\")?,\n",
            },
            Edit {
                file: "runledger/src/runtime/claimer.rs",
                old: "self.executor.held.add(Fence { run_id: run.run_id, token })",
                new: "self.executor.held.add(Fence { run_id: run.run_id, token: Uuid::from_u128(u128::from(run.claims.unsigned_abs())) })",
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
            file: "runledger/src/runtime/maintenance.rs",
            old: "unknown.retain(|lease| !self.held.knows(lease.fence()));",
            new: "unknown.clear();",
        }],
        tests: &["lost_messages::a_run_whose_claim_was_never_answered_is_claimed_again"],
    },
    Mutant {
        name: "no-rollback-hook",
        edits: &[Edit {
            file: "runledger/src/api/db.rs",
            old: "Ok(answered(PATIENCE, sessions.reset(connection)).await.is_ok())",
            new: "drop(sessions); Ok(!connection.is_in_transaction() || true)",
        }],
        tests: &["enqueue::an_acknowledged_enqueue_survives_forgotten_transactions_of_the_same_pool"],
    },
    Mutant {
        name: "free-lock-is-death",
        edits: &[
            Edit {
                file: "runledger/src/runtime/heartbeat.rs",
                old: "let overdue = self.timings.overdue().as_secs_f64();",
                new: "let overdue = 0.0;",
            },
            Edit {
                file: "runledger/src/runtime/maintenance.rs",
                old: "let suspect_after = self.timings.suspect.as_secs_f64();",
                new: "let suspect_after = 0.0;",
            },
        ],
        tests: &["lost_messages::a_worker_whose_lock_session_is_lost_keeps_its_runs_while_its_heart_beats"],
    },
    Mutant {
        name: "no-orphan-sweep",
        edits: &[Edit {
            file: "runledger/src/runtime/maintenance.rs",
            old: "settlement::settle_orphans(connection, BATCH, crashed)",
            new: "settlement::settle_orphans(connection, 0, crashed)",
        }],
        tests: &["crashes::the_runs_of_a_killed_worker_go_on_elsewhere"],
    },
    Mutant {
        name: "crash-costs-an-attempt",
        edits: &[Edit {
            file: "runledger/src/model/settle.rs",
            old: "Outcome::Crashed { progressed, blame } => after_crash(progressed, blame, unspent, unit_random),",
            new: "Outcome::Crashed { progressed, blame } => after_crash(progressed, blame, counters, unit_random),",
        }],
        tests: &["crashes::a_crash_costs_no_attempt"],
    },
    Mutant {
        name: "replay-ignores-order",
        edits: &[Edit {
            file: "runledger/src/runtime/attempt.rs",
            old: "if progress.replay.may_deliver(ordinal) {",
            new: "if true || progress.replay.may_deliver(ordinal) {",
        }],
        tests: &["versions::a_replay_sees_the_winner_of_a_race_that_the_first_execution_saw"],
    },
    Mutant {
        name: "own-record-is-conflict",
        edits: &[
            Edit {
                file: "runledger/src/store/sql/checkpoint.sql",
                old: "    on conflict (run_id, key) do nothing\n)",
                new: "    on conflict (run_id, key) do nothing\n    returning run_id, key\n)",
            },
            Edit {
                file: "runledger/src/store/sql/checkpoint.sql",
                old: "end as restless\nfrom held",
                new: "end as restless\nfrom held\nwhere (run_id, key) in (select run_id, key from recorded)",
            },
        ],
        tests: &["lost_messages::a_step_whose_record_was_never_acknowledged_goes_on_under_the_same_claim"],
    },
    Mutant {
        name: "record-again-as-fresh",
        edits: &[Edit {
            file: "runledger/src/runtime/writer.rs",
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
            file: "runledger/src/api/enqueue.rs",
            old: "Delivery::Unknown => submit_on_pool(db.pool(), batch, true, false).await",
            new: "Delivery::Unknown => submit_on_pool(db.pool(), batch, true, true).await",
        }],
        tests: &["enqueue::an_enqueue_whose_reply_is_lost_gives_the_run_that_it_has_made"],
    },
    Mutant {
        name: "child-started-once-only",
        edits: &[Edit {
            file: "runledger/src/store/sql/start_child.sql",
            old: "    on conflict (run_id) do nothing\n",
            new: "",
        }],
        tests: &["lost_messages::a_child_whose_start_was_never_acknowledged_is_started_once"],
    },
    Mutant {
        name: "no-guard",
        edits: &[Edit {
            file: "runledger/src/runtime/liveness.rs",
            old: "while acknowledged.borrow_and_update().elapsed() >= self.limit {",
            new: "while false && acknowledged.borrow_and_update().elapsed() >= self.limit {",
        }],
        tests: &["zombies::a_worker_that_slept_through_its_lease_begins_no_body_before_it_knows"],
    },
    Mutant {
        name: "enqueue-wakes-nobody",
        edits: &[Edit {
            file: "runledger/src/store/sql/enqueue_fresh.sql",
            old: "where state = 'active' and sleeping\n",
            new: "where state = 'active' and sleeping and false\n",
        }],
        tests: &["enqueue::an_enqueue_wakes_one_sleeping_worker_a_run_and_one_more_of_those_that_serve_it"],
    },
    Mutant {
        name: "no-wake-of-parents",
        edits: &[Edit {
            file: "runledger/src/store/sql/wake_parents.sql",
            old: "            waiting.wait_any operator(pg_catalog.&&) $1::uuid[]\n",
            new: "            waiting.wait_any operator(pg_catalog.&&) $1::uuid[] and false\n",
        }],
        tests: &["crashes::a_parent_is_woken_by_the_end_of_its_child_though_its_worker_is_killed"],
    },
    Mutant {
        name: "woken-by-any-child",
        edits: &[Edit {
            file: "runledger/src/store/sql/wake_parents.sql",
            old: "                and not exists (\n                    select\n                    from pg_catalog.unnest(waiting.wait_all)",
            new: "                or not exists (\n                    select\n                    from pg_catalog.unnest(waiting.wait_all)",
        }],
        tests: &["families::a_parent_is_woken_once_when_its_last_child_ends_though_workers_are_killed"],
    },
    Mutant {
        name: "cancelled-stays-queued",
        edits: &[Edit {
            file: "runledger/src/store/sql/cancel_take.sql",
            old: "    delete from runledger.ready\n    where run_id = $1 and not exists (select from undo)\n    returning run_id, attempt, crashes, claims\n",
            new: "    select run_id, attempt, crashes, claims\n    from runledger.ready\n    where run_id = $1 and not exists (select from undo)\n",
        }],
        tests: &["endings::a_run_that_was_cancelled_in_its_queue_is_not_claimed"],
    },
    Mutant {
        name: "cancel-stays-above",
        edits: &[Edit {
            file: "runledger/src/store/sql/cancel_below.sql",
            old: "from below\nwhere not exists (select from runledger.outcome",
            new: "from below\nwhere false and not exists (select from runledger.outcome",
        }],
        tests: &["families::a_cancel_reaches_the_children_though_the_worker_of_all_is_killed"],
    },
    Mutant {
        name: "node-starts-early",
        edits: &[Edit {
            file: "runledger/src/store/sql/release.sql",
            old: "    select run_id from counted where remaining = 0\n",
            new: "    select run_id from counted where remaining >= 0\n",
        }],
        tests: &["families::a_node_starts_when_the_last_that_it_needs_has_ended_though_workers_are_killed"],
    },
    Mutant {
        name: "weight-is-lost",
        edits: &[Edit {
            file: "runledger/src/store/sql/release.sql",
            old: "weight = pending.weight + gain.weight",
            new: "weight = pending.weight",
        }],
        tests: &["families::a_node_starts_when_the_last_that_it_needs_has_ended_though_workers_are_killed"],
    },
    Mutant {
        name: "recorded-runs-again",
        edits: &[Edit {
            file: "runledger/src/runtime/step.rs",
            old: "Some(recorded) if claim.recorded => recorded,",
            new: "Some(recorded) if false && claim.recorded => recorded,",
        }],
        tests: &["crashes::the_runs_of_a_killed_worker_go_on_elsewhere"],
    },
    Mutant {
        name: "signal-taken-and-left",
        edits: &[Edit {
            file: "runledger/src/store/sql/take_signal.sql",
            old: "    set taken_by = held.key, taken_in = held.slice\n",
            new: "    set taken_by = taken_by\n",
        }],
        tests: &["lost_messages::a_signal_whose_taking_was_never_acknowledged_is_taken_once"],
    },
    Mutant {
        name: "signals-out-of-order",
        edits: &[Edit {
            file: "runledger/src/store/sql/signal_left.sql",
            old: "order by number\n",
            new: "order by number desc\n",
        }],
        tests: &["lost_messages::a_signal_whose_taking_was_never_acknowledged_is_taken_once"],
    },
    Mutant {
        name: "claims-anything",
        edits: &[Edit {
            file: "runledger/src/store/sql/claim.sql",
            old: "            and ready.job = lane.job\n",
            new: "",
        }],
        tests: &["versions::a_run_of_an_unknown_job_stays_in_its_queue_untouched"],
    },
];

#[test]
fn every_mutant_matches_the_sources_once_and_names_tests_that_exist() -> Result<()> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tests are no member of a workspace")?;
    MUTANTS.iter().try_for_each(|mutant| mutant.check(root))
}
