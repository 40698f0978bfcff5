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
        tests: &["it::locked_runs::runs_that_come_to_wait_leave_their_slots_while_they_are_locked"],
    },
    Mutant {
        name: "parked-while-locked-and-forgotten",
        edits: &[Edit {
            file: "runledger/src/worker/execute/executor.rs",
            old: "if suspended == Suspended::Locked {",
            new: "if false {",
        }],
        tests: &["it::locked_runs::runs_that_come_to_wait_leave_their_slots_while_they_are_locked"],
    },
    Mutant {
        name: "parked-while-locked-without-a-look",
        edits: &[Edit {
            file: "runledger/src/store/sql/settle/suspend.sql",
            old: "case when not $9 then",
            new: "case when not $9 and false then",
        }],
        tests: &["it::locked_runs::locked_run_goes_on_though_the_worker_that_parked_it_has_stopped"],
    },
    Mutant {
        name: "cancelled-child-forgets-its-locked-parent",
        edits: &[Edit {
            file: "runledger/src/store/operator/cancel.rs",
            old: "                return Ok(Some(parent));\n",
            new: "                return Ok(None);\n",
        }],
        tests: &["it::locked_runs::deadline_of_a_child_is_kept_while_its_parent_is_locked"],
    },
    Mutant {
        name: "request-of-a-locked-run-is-forgotten",
        edits: &[Edit {
            file: "runledger/src/store/worker/cancel_requests.rs",
            old: "let mut walked: Vec<Uuid> = over.into_iter()",
            new: "let mut walked: Vec<Uuid> = over.into_iter().chain(going_on.clone())",
        }],
        tests: &[
            "it::locked_runs::request_for_a_run_that_ends_while_it_is_looked_at_stays_for_what_is_below",
        ],
    },
    Mutant {
        name: "claim-does-not-see-a-pause",
        edits: &[Edit {
            file: "runledger/src/store/sql/claim/parts/claimed.sql",
            old: "exists (select from runledger.pause where pause.run_id = run.run_id) as pause_requested",
            new: "false as pause_requested",
        }],
        tests: &[
            "it::pausing::a_run_that_went_back_to_its_queue_before_its_worker_heard_of_the_pause_is_not_begun_again",
        ],
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
        tests: &[
            "workflows::sagas::request_to_cancel_that_comes_while_steps_are_being_undone_disturbs_nothing",
        ],
    },
    Mutant {
        name: "cancelled-stays-queued",
        edits: &[Edit {
            file: "runledger/src/store/sql/stop/cancel_take.sql",
            old: "    delete from runledger.ready\n    where run_id = $1 and not exists (select from compensation)\n    returning run_id, attempt, crashes, claims\n",
            new: "    select run_id, attempt, crashes, claims\n    from runledger.ready\n    where run_id = $1 and not exists (select from compensation)\n",
        }],
        tests: &["endings::a_run_that_was_cancelled_in_its_queue_is_not_claimed"],
    },
    Mutant {
        name: "cancel-stays-above",
        edits: &[Edit {
            file: "runledger/src/store/sql/stop/cancel_below.sql",
            old: "select\n    above.place, child.run_id,\n    not exists",
            new: "select\n    above.place, child.run_id,\n    false and not exists",
        }],
        tests: &["families::a_cancel_reaches_the_children_though_the_worker_of_all_is_killed"],
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
        tests: &["it::chores::wait_that_cannot_end_does_not_stop_others"],
    },
    Mutant {
        name: "locked-rows-are-tried-again-first",
        edits: &[Edit {
            file: "runledger/src/store/worker/set_aside.rs",
            old: "tried.iter().filter(|run_id| !handled.contains(run_id)) {",
            new: "tried.iter().filter(|run_id| handled.contains(run_id)) {",
        }],
        tests: &[
            "it::stuck_rows::locked_cancel_requests_of_ended_runs_do_not_delay_a_cancel",
            "it::stuck_rows::locked_deadlines_of_ended_runs_do_not_delay_a_later_deadline",
        ],
    },
    Mutant {
        name: "locked-parent-stops-the-commit-queue",
        edits: &[Edit {
            file: "runledger/src/store/attempt/settle.rs",
            old: "free.extend(IfLocked::Skip.lock_runs(&mut tx, &parents).await?);",
            new: "free.extend(IfLocked::Wait.lock_runs(&mut tx, &parents).await?);",
        }],
        tests: &["it::locked_runs::children_end_and_leave_their_slots_while_their_parent_is_locked"],
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
        tests: &[
            "it::locked_runs::deadlines_are_kept_while_more_locked_runs_than_one_look_takes_are_overdue",
        ],
    },
    Mutant {
        name: "request-is-not-seen-by-a-claim",
        edits: &[Edit {
            file: "runledger/src/store/sql/claim/parts/claimed.sql",
            old: "exists (select from runledger.cancel where cancel.run_id = run.run_id) as cancel_requested",
            new: "false as cancel_requested",
        }],
        tests: &["it::locked_runs::run_that_was_locked_when_what_is_above_it_was_cancelled_goes_on_no_more"],
    },
    Mutant {
        name: "cancel-waits-for-the-parent",
        edits: &[Edit {
            file: "runledger/src/store/operator/cancel.rs",
            old: "if IfLocked::Skip.lock_runs(tx, &[parent])",
            new: "if IfLocked::Wait.lock_runs(tx, &[parent])",
        }],
        tests: &["it::locked_runs::cancel_of_a_child_does_not_wait_for_its_locked_parent"],
    },
    Mutant {
        name: "doubled-run-stops-its-cancel",
        edits: &[Edit {
            file: "runledger/src/store/places.rs",
            old: "    Ok(!repaired.is_empty())",
            new: "    Ok(false)",
        }],
        tests: &["it::places::person_cancels_and_pauses_run_in_two_places"],
    },
    Mutant {
        name: "record-that-waits-holds-up-its-writer",
        edits: &[Edit {
            file: "runledger/src/store/error.rs",
            old: "lives(error) && class(error) != Class::Permanent",
            new: "lives(error) && class(error) != Class::Permanent && cause(error).reason != Reason::Privilege",
        }],
        tests: &["it::roles::records_of_a_table_that_the_role_may_not_write_wait_and_other_runs_complete"],
    },
    Mutant {
        name: "passed-on-error-is-an-outage",
        edits: &[Edit {
            file: "runledger/src/store/error.rs",
            old: "lives(error) && class(error) != Class::Permanent",
            new: "matches!(own_cause(error).reason, Reason::Privilege | Reason::Limit(_))",
        }],
        tests: &["it::triggers::end_that_a_trigger_refuses_waits_alone_whatever_the_code"],
    },
    Mutant {
        name: "full-server-passed-on-is-an-outage",
        edits: &[Edit {
            file: "runledger/src/store/error.rs",
            old: "lives(error) && class(error) != Class::Permanent",
            new: "lives(error) && class(error) == Class::Transient",
        }],
        tests: &["it::triggers::wait_that_a_trigger_keeps_from_timing_out_holds_up_no_other"],
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
        tests: &["it::small_pools::transaction_of_a_body_begins_after_the_heartbeats_are_back"],
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
        tests: &["it::triggers::runs_end_while_the_leases_of_others_are_locked"],
    },
];
