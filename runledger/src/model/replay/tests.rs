//! The records that a replay accepts, and the order of its deliveries.

use super::*;

fn row(key: &str, ordinal: u64, seen_len: u32, seen: Option<&[u64]>) -> Recorded {
    let result = Ok(format!("\"{key}\""));
    Recorded {
        key: key.into(),
        ordinal,
        fingerprint: 7,
        result,
        seen_len,
        seen: seen.map(<[u64]>::to_vec),
        compensation: None,
    }
}

fn claim(replay: &mut Replay, name: &str) -> Claim {
    replay.claim(name, None, 7).unwrap_or_else(|divergence| unreachable!("{divergence}"))
}

#[test]
fn step_keys_are_names_counted_per_occurrence() {
    let mut replay = Replay::default();
    let keys = [
        ("charge", None),
        ("charge", None),
        ("reserve", Some("a")),
        ("reserve", Some("a")),
        ("charge", None),
    ]
    .map(|(name, key)| replay.claim(name, key, 0).map(|claim| claim.key.to_string()));
    assert_eq!(
        keys.map(Result::unwrap_or_default),
        ["charge", "charge#2", "reserve[a]", "reserve[a]#2", "charge#3"]
    );
}

#[test]
fn too_long_key_is_refused_unless_recorded() {
    let nested = |replay: &mut Replay, depth: usize| {
        let name = "b".repeat(47);
        let inner = (0..depth).fold(Scope::root(), |scope, _| replay.branch(&scope, &name));
        replay.claim_in(&inner, "charge", None, 7)
    };
    let mut replay = Replay::default();
    let longest = nested(&mut replay, 21).unwrap();
    assert_eq!(longest.key.as_str().len(), 21 * 48 + 6);
    assert!(replay.claim_undo(longest.key.as_str()).is_ok(), "the compensation has room for its longer key");
    let refused = nested(&mut Replay::default(), 22).unwrap_err();
    assert_eq!(refused, Divergence::LongKey { length: 22 * 48 + 6, name: "charge".to_owned() });

    let key = format!("{}charge", format!("{}/", "b".repeat(47)).repeat(22));
    let scope = (0..22).fold(Scope::root(), |scope, _| Replay::default().branch(&scope, &"b".repeat(47)));
    let mut recorded = Replay::new(vec![row(&key, scope.base, 0, None)]);
    assert!(nested(&mut recorded, 22).unwrap().recorded);
}

#[test]
fn sequential_steps_store_no_order() {
    let mut replay = Replay::default();
    for _ in 0..5 {
        let step = claim(&mut replay, "step");
        assert_eq!(replay.seen(step.seen_len), None);
        replay.deliver(step.ordinal);
    }
}

#[test]
fn order_differing_from_claims_is_stored_until_acknowledged() {
    let mut replay = Replay::default();
    let (a, b) = (claim(&mut replay, "a"), claim(&mut replay, "b"));
    replay.deliver(b.ordinal);
    let c = claim(&mut replay, "c");
    assert_eq!(replay.seen(c.seen_len), Some(vec![1, 2]));
    replay.deliver(a.ordinal);
    let d = claim(&mut replay, "d");
    assert_eq!(replay.seen(d.seen_len), Some(vec![1, 2, 0, 3]));
    replay.acknowledge(c.seen_len);
    assert_eq!(replay.seen(d.seen_len), Some(vec![0, 3]));
}

#[test]
fn results_are_delivered_in_observed_order() {
    let rows = vec![row("a", 0, 0, None), row("b", 1, 0, None), row("c", 2, 1, Some(&[1, 2]))];
    let mut replay = Replay::new(rows);
    claim(&mut replay, "a");
    assert!(!replay.may_deliver(0), "`b` is not claimed yet and was before any delivery");
    claim(&mut replay, "b");
    assert!(!replay.may_deliver(0), "`b` was observed first");
    assert!(replay.may_deliver(1));
    replay.deliver(1);
    assert!(!replay.may_deliver(0), "`c` was claimed before `a` was observed");
    claim(&mut replay, "c");
    assert!(replay.may_deliver(0) && replay.may_deliver(2));
}

#[test]
fn step_in_flight_at_crash_keeps_its_ordinal() {
    let mut replay = Replay::new(vec![row("a", 0, 0, None), row("a2", 2, 1, Some(&[0, 2]))]);
    assert!(claim(&mut replay, "a").recorded);
    assert!(!replay.may_deliver(0), "`b`, whose row was lost, was claimed before `a` was observed");
    assert!(!claim(&mut replay, "b").recorded);
    replay.deliver(0);
    assert!(claim(&mut replay, "a2").recorded);
    assert_eq!(replay.unmet(), None);
}

#[test]
fn no_new_step_begins_before_history_is_replayed() {
    let mut replay = Replay::new(vec![row("a", 0, 0, None), row("b", 1, 1, None)]);
    let fresh = replay.claim_in(&Scope::at("other/".to_owned()), "c", None, 7);
    assert!(fresh.is_ok() && !replay.may_begin(), "two recorded steps are ahead");
    let (a, b) = (claim(&mut replay, "a"), claim(&mut replay, "b"));
    assert!(!replay.may_begin(), "the code of the record had received the first");
    replay.deliver(a.ordinal);
    assert!(replay.may_begin() && b.recorded);
}

#[test]
fn steps_lost_in_failover_begin_again_before_later_recorded_steps() {
    let sequence = [row("a", 0, 0, None), row("d", 3, 3, None)];
    let fan_out = [row("a", 0, 0, None), row("b", 1, 0, None), row("d", 3, 2, Some(&[2, 3, 0, 3]))];
    for rows in [sequence.to_vec(), fan_out.to_vec()] {
        assert!(Replay::new(rows).may_begin());
    }
}

#[test]
fn different_step_at_recorded_position_diverges() {
    let mut replay = Replay::new(vec![row("reserve", 0, 0, None), row("charge", 1, 1, None)]);
    claim(&mut replay, "reserve");
    replay.deliver(0);
    let divergence = replay.claim("bill", None, 7).map_err(|divergence| divergence.to_string());
    assert!(divergence.is_err_and(|text| text.contains("`bill` stands where `charge` was recorded")));
}

#[test]
fn inserted_step_diverges_and_keeps_keys_of_recorded_steps() {
    let mut replay = Replay::new(vec![row("charge", 0, 0, None)]);
    assert!(
        matches!(replay.claim("audit", None, 7), Err(Divergence::Moved { recorded, .. }) if recorded == "charge")
    );
    assert_eq!(claim(&mut replay, "charge").key.as_str(), "charge");
}

#[test]
fn recorded_step_with_different_input_diverges() {
    let mut replay = Replay::new(vec![row("charge", 0, 0, None)]);
    assert!(matches!(replay.claim("charge", None, 8), Err(Divergence::Input { .. })));
}

#[test]
fn unreached_recorded_step_diverges() {
    let mut replay = Replay::new(vec![row("reserve", 0, 0, None), row("charge", 1, 1, None)]);
    claim(&mut replay, "reserve");
    replay.deliver(0);
    assert!(matches!(replay.unmet(), Some(Divergence::Unmet { recorded, count: 1 }) if recorded == "charge"));
}

#[test]
fn branches_claim_same_keys_and_ordinals_in_any_polling_order() {
    let both = |first_is_left: bool| {
        let mut replay = Replay::default();
        let (left, right) = (replay.branch(&Scope::root(), "left"), replay.branch(&Scope::root(), "right"));
        let order = if first_is_left { [&left, &right, &left] } else { [&right, &left, &left] };
        let mut claims = order.map(|scope| {
            let claim = replay.claim_in(scope, "step", None, 0);
            claim.map(|claim| (claim.key.to_string(), claim.ordinal)).unwrap_or_default()
        });
        claims.sort_unstable();
        claims
    };
    assert_eq!(both(true), both(false));
    assert_eq!(both(true).map(|(key, _)| key), ["left/step", "left/step#2", "right/step"]);
}

#[test]
fn repeated_and_nested_branches_have_distinct_keys() {
    let mut replay = Replay::default();
    let first = replay.branch(&Scope::root(), "item");
    let second = replay.branch(&Scope::root(), "item");
    let inner = replay.branch(&second, "item");
    let keys = [&first, &second, &inner].map(|scope| {
        replay.claim_in(scope, "item", None, 0).map(|claim| claim.key.to_string()).unwrap_or_default()
    });
    assert_eq!(keys, ["item/item", "item#2/item", "item#2/item/item"]);
}

#[test]
fn unreached_recorded_step_of_branch_diverges() {
    let mut first = Replay::default();
    let left = first.branch(&Scope::root(), "left");
    let claimed = first.claim_in(&left, "charge", None, 7).unwrap_or_else(|error| unreachable!("{error}"));
    let mut replay = Replay::new(vec![row("left/charge", claimed.ordinal, 0, None)]);
    assert!(matches!(replay.unmet(), Some(Divergence::Unmet { recorded, .. }) if recorded == "left/charge"));
    let left = replay.branch(&Scope::root(), "left");
    let other = replay.claim_in(&left, "bill", None, 7);
    assert!(matches!(other, Err(Divergence::Moved { recorded, .. }) if recorded == "left/charge"));
}

#[test]
fn patch_applies_unless_recorded_run_is_beyond_it() {
    let mut fresh = Replay::default();
    claim(&mut fresh, "reserve");
    let (is_patched, marker) = fresh.patched("mail").unwrap_or_else(|error| unreachable!("{error}"));
    let marker = marker.unwrap_or_else(|| unreachable!("it is recorded"));
    assert!(is_patched && !marker.recorded);
    let place = marker.ordinal;
    assert_eq!(fresh.patched("mail"), Ok((true, None)), "decided once");

    let mut beyond = Replay::new(vec![row("reserve", 0, 0, None), row("charge", 1, 1, None)]);
    claim(&mut beyond, "reserve");
    beyond.deliver(0);
    assert_eq!(beyond.patched("mail"), Ok((false, None)));
    assert!(claim(&mut beyond, "charge").recorded, "the old steps keep their places");
    assert_eq!(beyond.patched("mail"), Ok((false, None)), "decided once");

    let mut marker = row("patched[mail]", place, 1, None);
    marker.fingerprint = 0;
    let mut again = Replay::new(vec![row("reserve", 0, 0, None), marker, row("mail", 1, 1, None)]);
    claim(&mut again, "reserve");
    again.deliver(0);
    assert!(matches!(again.patched("mail"), Ok((true, Some(Claim { recorded: true, .. })))));
}

#[test]
fn patches_are_decided_alike_in_any_branch_order() {
    let mut first = Replay::default();
    let rows: Vec<Recorded> = ["one", "other"]
        .into_iter()
        .map(|name| {
            let claim = first.patched(name).unwrap().1.unwrap();
            Recorded {
                key: claim.key.as_str().to_owned(),
                ordinal: claim.ordinal,
                fingerprint: 0,
                result: Ok("true".into()),
                seen_len: claim.seen_len,
                seen: None,
                compensation: None,
            }
        })
        .collect();
    let mut again = Replay::new(rows);
    for name in ["other", "one"] {
        assert!(matches!(again.patched(name), Ok((true, Some(claim))) if claim.recorded), "{name}");
    }
    assert!(again.is_met());
}

#[test]
fn saga_compensations_claim_same_steps_in_any_branch_order() {
    let claimed = |order: [&str; 2]| {
        let mut replay = Replay::default();
        let mut claims = order.map(|first| {
            let claim = replay.claim_saga(first).unwrap();
            (claim.key.as_str().to_owned(), claim.ordinal)
        });
        claims.sort_unstable();
        claims
    };
    assert_eq!(claimed(["a", "b"]), claimed(["b", "a"]));
    assert_eq!(claimed(["a", "b"]).map(|(key, _)| key), ["saga.compensate[a]", "saga.compensate[b]"]);
}

/// Simulates a scope that already has the maximum number of steps.
#[test]
fn full_scope_refuses_next_step_and_names_limit() {
    let mut replay = Replay::new(Vec::new());
    let branch = replay.branch(&Scope::root(), "left");
    for scope in [Scope::root(), branch] {
        let path = scope.path().to_owned();
        replay.claimed.insert(scope.base, (path, (1 << LOCAL_BITS) - 1));
        replay.claim_in(&scope, "last", None, 0).unwrap();
        let said = replay.claim_in(&scope, "more", None, 0).unwrap_err().to_string();
        let whose = if scope == Scope::root() {
            "the workflow has 4194304 steps"
        } else {
            "branch `left/` has 4194304 steps"
        };
        assert!(said.starts_with(whose) && said.contains("`wf.continue_as_new`"), "{said}");
    }
}

#[test]
fn replay_knows_recorded_and_delivered_results() {
    let mut replay = Replay::new(vec![row("a", 0, 0, None), row("b", 1, 0, None), row("c", 2, 1, None)]);
    assert_eq!(replay.result(0), Some(&Ok("\"a\"".to_owned())));
    assert_eq!(replay.result(3), None);
    assert_eq!([0, 1].map(|ordinal| replay.was_delivered(ordinal)), [true, false]);
    assert_eq!(replay.last_delivered(), None);
    claim(&mut replay, "a");
    replay.deliver(0);
    assert_eq!(replay.last_delivered(), Some("a"));
}

#[test]
fn inputs_are_not_compared_without_fingerprint_key() {
    let mut replay = Replay::new(vec![row("charge", 0, 0, None), row("mail", 1, 1, None)]).ignoring_inputs();
    assert!(replay.claim("charge", None, 8).is_ok_and(|claim| claim.recorded));
    assert!(matches!(replay.claim("bill", None, 7), Err(Divergence::Moved { .. })));
}

#[test]
fn steps_are_compensated_once_in_reverse_order() {
    let with_compensation =
        |compensation: &str, row: Recorded| Recorded { compensation: Some(compensation.to_owned()), ..row };
    let compensation = row("compensate[b]", Scope::of_compensation("b").base, 0, None);
    let rows = vec![
        with_compensation("back b", row("b", 1, 1, None)),
        with_compensation("back a", row("a", 0, 0, None)),
        row("c", 2, 2, None),
        compensation,
    ];
    let mut replay = Replay::new(rows);
    replay.note_compensation("d", "back d".to_owned());
    let calls = [("d", "back d"), ("a", "back a")].map(|(key, call)| (key.to_owned(), call.to_owned()));
    assert_eq!(replay.to_undo(), calls, "`b` was taken back");
    let compensation_of = |key| replay.compensation_of(key).unwrap_or_default();
    assert_eq!(["a", "b", "c", "d"].map(compensation_of), ["back a", "back b", "", "back d"]);
}

#[test]
fn step_is_due_after_as_many_results_as_recorded() {
    let mut replay = Replay::default();
    let branch = replay.branch(&Scope::root(), "left");
    for scope in [Scope::root(), branch] {
        let row = |key: &str, place: u64, seen_len| {
            row(&format!("{}{key}", scope.path), scope.base | place, seen_len, None)
        };
        let rows = vec![row("item[a]", 0, 0), row("item[b]", 1, 0), row("item[c]", 2, 1)];
        let mut replay = Replay::new(rows);
        for key in ["a", "b"] {
            assert!(
                !replay.is_due(&scope, "item", Some("other")) && !replay.is_due(&scope, "mail", Some(key))
            );
            assert!(replay.is_due(&scope, "item", Some(key)));
            assert!(replay.claim_in(&scope, "item", Some(key), 7).is_ok_and(|claim| claim.recorded));
        }
        assert!(!replay.is_due(&scope, "item", Some("c")), "the code had a result when it claimed this one");
        replay.deliver(scope.base);
        assert!(replay.is_due(&scope, "item", Some("c")));
        assert!(replay.claim_in(&scope, "item", Some("c"), 7).is_ok());
        assert!(!replay.is_due(&scope, "item", Some("d")), "no record has it");
    }
}

#[test]
fn unfinished_step_is_due_if_later_namesake_is_recorded() {
    let mut replay = Replay::new(vec![row("item[a]", 0, 0, None), row("item[c]", 2, 0, None)]);
    let root = Scope::root();
    assert!(replay.claim("item", Some("a"), 7).is_ok());
    assert!(replay.is_due(&root, "item", Some("b")));
    assert!(!replay.is_due(&root, "mail", Some("b")) && !replay.is_due(&root, "it", Some("b")));
}

/// The numbers are pinned: records of runs contain them.
#[test]
fn fingerprint_of_each_step_kind_is_pinned() {
    let kinds = [StepKind::Output, StepKind::Child, StepKind::Alarm, StepKind::Signal, StepKind::Value];
    let salts =
        [0, 0x2f6e_81c4_5d90_3ab7, 0x61d3_0b9a_c7f2_4e58, 0x1a94_f73d_286b_c0e5, 0x7c05_a2e8_914d_63f1_i64];
    assert_eq!(kinds.map(|kind| kind.fingerprint(0)), salts);
    assert_eq!(kinds.map(|kind| kind.fingerprint(-1)), salts.map(|salt| !salt));
}

/// Replays a plain loop in which each step can be compensated.
fn replay_loop(n_steps: u32) {
    let rows = (0..n_steps).map(|n| {
        let key = if n == 0 { "step".to_owned() } else { format!("step#{}", n + 1) };
        Recorded { compensation: Some(format!("back {n}")), ..row(&key, n.into(), n, None) }
    });
    let mut replay = Replay::new(rows.collect());
    for n in 0..u64::from(n_steps) {
        let step = claim(&mut replay, "step");
        assert!(step.recorded && replay.may_deliver(n));
        assert_eq!(replay.was_delivered(n), n + 1 < n_steps.into());
        replay.deliver(n);
        assert_eq!(replay.compensation_of(step.key.as_str()), Some(format!("back {n}")));
    }
    assert!(replay.is_met());
}

/// Replay keeps a thread of its worker busy. A replay that scans the history for each step takes
/// minutes here.
#[test]
fn replay_of_long_history_takes_linear_time() {
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        replay_loop(200_000);
        ended.send(()).unwrap();
    });
    end.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
}
