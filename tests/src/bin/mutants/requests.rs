//! Defects in operator requests (on claimed, waiting and locked runs), and in records that the
//! database refuses for single runs.

use super::mutant::{Edit, Mutant};

pub const REQUESTS: &[Mutant] = &[
    Mutant {
        name: "waits-for-the-lock-to-be-parked",
        edits: &[Edit {
            file: "runledger/src/store/worker/suspend.rs",
            old: "IfLocked::Skip.lock_runs(&mut tx, &[fence.run_id])",
            new: "IfLocked::Wait.lock_runs(&mut tx, &[fence.run_id])",
        }],
        tests: &["it::locked_runs::suspending_runs_free_slots_while_locked"],
    },
    Mutant {
        name: "parked-while-locked-and-forgotten",
        edits: &[Edit {
            file: "runledger/src/worker/execute/executor.rs",
            old: "if suspended == Suspended::Locked {",
            new: "if false {",
        }],
        tests: &["it::locked_runs::suspending_runs_free_slots_while_locked"],
    },
    Mutant {
        name: "parked-while-locked-without-a-look",
        edits: &[Edit {
            file: "runledger/src/store/sql/settle/suspend.sql",
            old: "case when not $9 then",
            new: "case when not $9 and false then",
        }],
        tests: &["it::locked_runs::locked_run_resumes_after_suspending_worker_has_stopped"],
    },
    Mutant {
        name: "cancelled-child-forgets-its-locked-parent",
        edits: &[Edit {
            file: "runledger/src/store/operator/cancel.rs",
            old: "                return Ok(Some(parent));\n",
            new: "                return Ok(None);\n",
        }],
        tests: &["it::locked_runs::child_deadline_applies_while_parent_is_locked"],
    },
    Mutant {
        name: "request-of-a-locked-run-is-forgotten",
        edits: &[Edit {
            file: "runledger/src/store/worker/cancel_requests.rs",
            old: "let mut walked: Vec<Uuid> = over.into_iter()",
            new: "let mut walked: Vec<Uuid> = over.into_iter().chain(going_on.clone())",
        }],
        tests: &["it::locked_runs::cancel_request_survives_for_descendants_when_run_ends_during_cleanup"],
    },
    Mutant {
        name: "claim-does-not-see-a-pause",
        edits: &[Edit {
            file: "runledger/src/store/sql/claim/parts/claimed.sql",
            old: "exists (select from runledger.pause where pause.run_id = run.run_id offset 0) as pause_requested",
            new: "false as pause_requested",
        }],
        tests: &["it::pausing::requeued_run_with_unread_pause_request_pauses_without_starting"],
    },
    Mutant {
        name: "compensation-obeys-a-late-cancel",
        edits: &[
            Edit {
                file: "runledger/src/worker/in_flight.rs",
                old: "if order == StopOrder::Cancel && present.is_compensating",
                new: "if false && present.is_compensating",
            },
            Edit {
                file: "runledger/src/store/sql/worker/asked_of.sql",
                old: "        and not exists (select from runledger.compensation where compensation.run_id = $1) as cancel",
                new: "        as cancel",
            },
        ],
        tests: &["workflows::sagas::cancel_request_during_compensation_does_not_disturb_it"],
    },
    Mutant {
        name: "cancelled-stays-queued",
        edits: &[Edit {
            file: "runledger/src/store/sql/stop/cancel_take.sql",
            old: "    delete from runledger.ready\n    where run_id = $1 and not exists (select from compensation)\n    returning run_id, attempt, crashes, claims\n",
            new: "    select run_id, attempt, crashes, claims\n    from runledger.ready\n    where run_id = $1 and not exists (select from compensation)\n",
        }],
        tests: &["endings::run_cancelled_in_queue_never_starts"],
    },
    Mutant {
        name: "cancel-stays-above",
        edits: &[Edit {
            file: "runledger/src/store/sql/stop/cancel_below.sql",
            old: "select\n    above.place, child.run_id,\n    not exists",
            new: "select\n    above.place, child.run_id,\n    false and not exists",
        }],
        tests: &["families::cancel_reaches_children_although_shared_worker_is_killed"],
    },
    Mutant {
        name: "bad-row-stops-its-batch",
        edits: &[
            Edit {
                file: "runledger/src/store/worker/set_aside.rs",
                old: "Err(error) if spares_others(&error) && !is_alone => {",
                new: "Err(error) if false && !is_alone => {",
            },
            Edit {
                file: "runledger/src/store/worker/set_aside.rs",
                old: "Err(error) if spares_others(&error) => {",
                new: "Err(error) if is_alone && spares_others(&error) => {",
            },
        ],
        tests: &["it::chores::overdue_wait_with_failing_wake_up_does_not_stop_others"],
    },
    Mutant {
        name: "locked-rows-are-tried-again-first",
        edits: &[Edit {
            file: "runledger/src/store/worker/set_aside.rs",
            old: "tried.iter().filter(|run_id| !handled.contains(run_id)) {",
            new: "tried.iter().filter(|run_id| handled.contains(run_id)) {",
        }],
        tests: &[
            "it::stuck_rows::locked_cancel_requests_of_terminal_runs_do_not_delay_cancel",
            "it::stuck_rows::locked_deadlines_of_terminal_runs_do_not_delay_later_deadline",
        ],
    },
    Mutant {
        name: "locked-parent-stops-the-commit-queue",
        edits: &[Edit {
            file: "runledger/src/store/attempt/settle.rs",
            old: "free.extend(IfLocked::Skip.lock_runs(&mut tx, &parents).await?);",
            new: "free.extend(IfLocked::Wait.lock_runs(&mut tx, &parents).await?);",
        }],
        tests: &["it::locked_runs::children_complete_and_free_slots_while_parent_is_locked"],
    },
    Mutant {
        name: "locked-runs-fill-the-look-for-deadlines",
        edits: &[
            Edit {
                file: "runledger/src/store/worker/deadlines.rs",
                old: "        search.leave_out(ids.iter().copied());\n",
                new: "        search.leave_out([]);\n",
            },
            Edit {
                file: "runledger/src/store/operator/cancel.rs",
                old: "    note(connection, run_id, reason, if_noted).await.map(|()| None)\n",
                new: "    Ok(None)\n",
            },
        ],
        tests: &["it::locked_runs::scan_full_of_locked_overdue_runs_does_not_block_deadlines"],
    },
    Mutant {
        name: "request-is-not-seen-by-a-claim",
        edits: &[Edit {
            file: "runledger/src/store/sql/claim/parts/claimed.sql",
            old: "exists (select from runledger.cancel where cancel.run_id = run.run_id offset 0) as cancel_requested",
            new: "false as cancel_requested",
        }],
        tests: &["it::locked_runs::child_locked_during_parent_cancel_does_not_resume"],
    },
    Mutant {
        name: "cancel-waits-for-the-parent",
        edits: &[Edit {
            file: "runledger/src/store/operator/cancel.rs",
            old: "if IfLocked::Skip.lock_runs(tx, &[parent])",
            new: "if IfLocked::Wait.lock_runs(tx, &[parent])",
        }],
        tests: &["it::locked_runs::child_cancel_does_not_wait_for_locked_parent"],
    },
    Mutant {
        name: "doubled-run-stops-its-cancel",
        edits: &[Edit {
            file: "runledger/src/store/places.rs",
            old: "    Ok(!repaired.is_empty())",
            new: "    Ok(false)",
        }],
        tests: &["it::places::run_in_two_tables_can_be_cancelled_and_paused"],
    },
    Mutant {
        name: "record-that-waits-holds-up-its-writer",
        edits: &[Edit {
            file: "runledger/src/store/error.rs",
            old: "lives(error) && class(error) != Class::Permanent",
            new: "lives(error) && class(error) != Class::Permanent && cause(error).reason != Reason::Privilege",
        }],
        tests: &["it::roles::run_waits_for_denied_progress_write_while_other_runs_complete"],
    },
    Mutant {
        name: "passed-on-error-is-an-outage",
        edits: &[Edit {
            file: "runledger/src/store/error.rs",
            old: "lives(error) && class(error) != Class::Permanent",
            new: "matches!(own_cause(error).reason, Reason::Privilege | Reason::Limit(_))",
        }],
        tests: &["it::triggers::refused_outcome_delays_only_its_run_for_every_error_code"],
    },
    Mutant {
        name: "full-server-passed-on-is-an-outage",
        edits: &[Edit {
            file: "runledger/src/store/error.rs",
            old: "lives(error) && class(error) != Class::Permanent",
            new: "lives(error) && class(error) == Class::Transient",
        }],
        tests: &["it::triggers::refused_wait_timeout_does_not_delay_other_waits"],
    },
    Mutant {
        name: "transaction-idles-while-heartbeats-fail",
        edits: &[
            Edit {
                file: "runledger/src/engine/transaction.rs",
                old: "            Ok(tx) if attempt.liveness.is_proven() => return (tx, mark),",
                new: "            Ok(tx) => {\n                attempt.liveness.guard().await;\n                return (tx, mark);\n            }",
            },
            Edit {
                file: "runledger/src/engine/transaction.rs",
                old: "        attempt.liveness.guard().await;\n        match with_timeout(STATEMENT_LIMIT, attempt.db.begin_marked(&mark)).await {\n",
                new: "        match with_timeout(STATEMENT_LIMIT, attempt.db.begin_marked(&mark)).await {\n",
            },
            Edit {
                file: "runledger/src/engine/transaction.rs",
                old: "            Ok(tx) => drop(tx),\n",
                new: "",
            },
        ],
        tests: &["it::small_pools::body_transaction_begins_only_after_heartbeats_recover"],
    },
    Mutant {
        name: "runs-set-aside-wait-as-long-as-a-batch",
        edits: &[
            Edit {
                file: "runledger/src/worker/execute/writer.rs",
                old: "self.session.open_writer().await",
                new: "self.session.open().await",
            },
            Edit {
                file: "runledger/src/worker/execute/writer.rs",
                old: "if self.wait != wait {",
                new: "if self.wait != wait && false {",
            },
        ],
        tests: &["it::triggers::runs_complete_while_leases_of_other_runs_are_locked"],
    },
];
