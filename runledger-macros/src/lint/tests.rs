//! Tests which tokens of a body are refused.

use proc_macro2::TokenStream;
use quote::ToTokens;

use super::local_of;
use super::mentions::mentions;
use super::names::Local;
use super::rules::rule_of;

/// The refused paths of a body, as written.
fn refused(body: &str) -> Vec<String> {
    refused_with("", body)
}

/// The refused paths of the body of a workflow with these parameters after its context.
fn refused_with(parameters: &str, body: &str) -> Vec<String> {
    let body: TokenStream = body.parse().expect("the body is tokens");
    let mut locals = vec![("wf".to_owned(), Local::Workflow)];
    for parameter in parameters.split("; ").filter(|parameter| !parameter.is_empty()) {
        let (name, ty) = parameter.split_once(": ").expect("a name and a type");
        locals.push((name.to_owned(), local_of(&syn::parse_str(ty).expect("a type"))));
    }
    let refused = mentions(&body, &locals).into_iter().filter(|mention| rule_of(mention).is_some());
    refused
        .map(|mention| {
            mention.to_token_stream().into_iter().map(|name| name.to_string()).collect::<Vec<_>>().join("::")
        })
        .collect()
}

#[track_caller]
fn passes(body: &str) {
    assert_eq!(refused(body), [""; 0], "{body}");
}

#[test]
fn lint_matches_path_by_its_last_segments() {
    assert_eq!(refused("SystemTime::now()"), ["SystemTime::now"]);
    assert_eq!(refused("let at = ::std::time::SystemTime::now();"), ["std::time::SystemTime::now"]);
    assert_eq!(refused("r#rand::random()"), ["r#rand::random"]);
    passes("SystemTime::now_or(later); Clock::now(); my::random()");
}

#[test]
fn ambiguous_bare_name_passes_but_unambiguous_name_is_refused() {
    passes("sleep(ONE); spawn(task); now(); random(); timeout(step); query!(a); read(x)");
    passes("let thread_rng = 1; f(thread_rng); let getrandom = Shop { getrandom };");
    assert_eq!(refused("thread_rng().next()"), ["thread_rng"]);
    assert_eq!(refused("f(&mut OsRng, OsRng.next())"), ["OsRng", "OsRng"]);
    assert_eq!(refused("StdRng::from_entropy()"), ["StdRng::from_entropy"]);
    passes("StdRng::seed_from_u64(seed); Uuid::new_v5(&space, name)");
}

#[test]
fn method_or_field_named_like_refused_function_passes() {
    passes("set.spawn(a).thread_rng().spawn_blocking(b); began.elapsed(); clock.now(); it.OsRng");
    passes("for n in 0..3 { n.getrandom() }");
    assert_eq!(refused("0..thread_rng()"), ["thread_rng"]);
    assert_eq!(refused("0..=thread_rng()"), ["thread_rng"]);
}

#[test]
fn function_passed_as_value_is_refused_like_its_call() {
    assert_eq!(refused("id.unwrap_or_else(Uuid::new_v4)"), ["Uuid::new_v4"]);
    assert_eq!(refused("let clock = SystemTime::now;"), ["SystemTime::now"]);
}

#[test]
fn wildcard_rule_matches_functions_but_not_types() {
    assert_eq!(
        refused("fs::read(a); tokio::fs::write(b); env::var_os(c)"),
        ["fs::read", "tokio::fs::write", "env::var_os"]
    );
    passes("let file: Option<fs::File> = None; fs::Permissions::from_mode(1); env::consts::OS; io::stdout()");
    assert_eq!(refused("fastrand::u8(..); fastrand::Rng::new()"), ["fastrand::u8", "fastrand::Rng::new"]);
    passes("fastrand::Rng::with_seed(7); reqwest::StatusCode::OK; reqwest::Url::parse(a)");
}

#[test]
fn generic_arguments_do_not_hide_path() {
    assert_eq!(refused("rand::random::<u64>()"), ["rand::random"]);
    assert_eq!(refused("sqlx::query_as::<_, (fn(u8) -> Vec<Vec<u8>>,)>(a)"), ["sqlx::query_as"]);
    assert_eq!(refused("JoinSet::<Vec<u8>>::new()"), ["JoinSet::new"]);
}

#[test]
fn rules_distinguish_macros_from_functions() {
    assert_eq!(
        refused("sqlx::query!(a); sqlx::query_as!{b}; sqlx::query(c)"),
        ["sqlx::query", "sqlx::query_as", "sqlx::query"]
    );
    assert_eq!(refused("nanoid!()"), ["nanoid"]);
    passes("nanoid(1); nanoid != 2; thread_rng!(); println!(a); eprintln!(b)");
}

#[test]
fn groups_closures_blocks_and_macros_do_not_hide_call() {
    for body in [
        "{ [(SystemTime::now(),)] }",
        "wf.map(ids, |id| async move { SystemTime::now() })",
        "tokio::join!(a, async { SystemTime::now() })",
        "select! { x = a => { SystemTime::now() } }",
        "tracing::info!(at = ?SystemTime::now())",
        "fn inside() -> X { SystemTime::now() }",
        "wf.run(charge(SystemTime::now()))",
        "let a = |x: &'a u8| SystemTime::now",
    ] {
        assert_eq!(refused(body), ["SystemTime::now"], "{body}");
    }
}

#[test]
fn strings_comments_attributes_and_imports_are_not_linted() {
    passes("\"SystemTime::now()\"; r#\"rand::random()\"#; /* Uuid::new_v4() */ 'a'; // fs::read(a)");
    passes("#[doc = fs::read()] #![cfg_attr(a, fs::read(b))] let a = 1;");
    passes("use std::{fs::read, time::SystemTime::now}; use rand::random;");
    passes("fn thread_rng() {} fn f() -> impl Sized + use<'a> {}");
    assert_eq!(refused("impl Sized + use<'a> { fs::read() }"), ["fs::read"]);
}

#[test]
fn only_inline_step_body_may_be_nondeterministic() {
    passes("wf.step(\"a\", || async { SystemTime::now(); fs::read(a)?; rand::random::<u8>() }).await?");
    passes("self.0.wf.step::<_, Vec<_>, u8>(\"a\", async || Uuid::new_v4())");
    passes("wf.tx(\"a\", |tx| async move { sqlx::query(a).execute(tx) }); wf.tx(|tx| sqlx::query(b))");
    passes("tokio::join!(wf.step(\"a\", || fs::read(a)), wf.step(\"b\", rand::random))");
    passes("Wf::step(wf, \"a\", || fs::read(a)); runledger::Wf::step(wf, \"a\", || fs::read(a))");
    assert_eq!(refused("wf.step(\"a\", || fs::read(a)).timeout(fs::read(b))"), ["fs::read"]);
    assert_eq!(
        refused("wf.step(\"a\", f).await; step(|| fs::read(a)); steps.step_by(fs::read(b))"),
        ["fs::read", "fs::read"]
    );
}

#[test]
fn closure_variable_used_only_as_step_body_passes() {
    passes("let read = || async { fs::read(a) }; wf.step(\"a\", read).await?; wf.step(\"b\", &read).await?");
    passes("let read = async move |n| fs::read(n); { loop { Wf::step(wf, \"a\", read.clone()) } }");
    for body in [
        "let read = || async { fs::read(a) }; wf.run(charge(read))",
        "let read = || async { fs::read(a) }; wf.step(\"a\", read).await?; read().await",
        "let data = fs::read(a); wf.step(\"a\", data)",
        "let other = || 1; fs::read(a); wf.step(\"a\", other)",
        "let outer = || { let inner = || 1; fs::read(a) }; wf.step(\"a\", inner)",
    ] {
        assert_eq!(refused(body), ["fs::read"], "{body}");
    }
}

#[test]
fn closure_or_function_called_only_from_steps_passes() {
    for body in [
        "let read = || fs::read(a); wf.step(\"a\", || async { read() }).await",
        "let read: Box<dyn Fn() -> Vec<u8>> = Box::new(|| fs::read(a)); wf.step(\"a\", || async { read() })",
        "let read: fn(&str) -> Option<Vec<u8>> = |a| fs::read(a).ok(); wf.step(\"a\", || async { read(b) })",
        "let mut read = move || fs::read(a); wf.tx(\"a\", |tx| async { read() })",
        "let read = { let a = a.clone(); move || fs::read(&a) }; wf.step(\"a\", read)",
        "fn read() -> X { fs::read(a) } wf.step(\"a\", || async { read() }).await",
        "wf.step(\"a\", || async { read() }).await; async fn read(rng: &mut OsRng) { more() } fn more() { fs::read(a) }",
        "impl S { fn read(&self) { fs::read(a) } fn other() { fs::read(b) } } wf.step(\"a\", || async { s.read(); S::other() })",
        "let one = || fs::read(a); let two = || one(); wf.step(\"a\", || async { two() })",
        "fn again(n: u8) { fs::read(n); again(n - 1) } wf.step(\"a\", || async { again(3) }); config::again(); b.again()",
    ] {
        passes(body);
    }
    for body in [
        "fn read() -> X { fs::read(a) } read(); wf.step(\"a\", || async { read() })",
        "fn read() -> X { fs::read(a) } let both = || read(); both(); wf.step(\"a\", || async { read() })",
        "impl S { fn read(&self) { fs::read(a) } } s.read(); wf.step(\"a\", || async { s.read() })",
        "impl S { fn read() { fs::read(a) } } S::read(); wf.step(\"a\", || async { S::read() })",
        "let read = { let data = fs::read(a); move || data.clone() }; wf.step(\"a\", read)",
        "let data: Vec<u8> = fs::read(a)?; wf.step(\"a\", || async { data })",
        "let read = Lazy::new(|| fs::read(a)); wf.step(\"a\", || async { read() })",
        "let read = || 1; { let read = fs::read(a); } wf.step(\"a\", read)",
    ] {
        assert_eq!(refused(body), ["fs::read"], "{body}");
    }
}

#[test]
fn refused_name_passes_as_type_but_not_as_value() {
    passes(
        "let rng: &mut OsRng = other; let at: Instant; let far: fn() -> OsRng = f; struct A { rng: OsRng }",
    );
    passes("enum A { B(OsRng) } type C = OsRng; struct D(OsRng); let n: [u8; 4] = [0; 4];");
    assert_eq!(refused("let rng: OsRng = OsRng;"), ["OsRng"]);
    assert_eq!(refused("struct A(OsRng); let a = A(OsRng);"), ["OsRng"]);
}

#[test]
fn qualified_type_path_is_linted_like_plain_path() {
    assert_eq!(refused("<SystemTime>::now()"), ["SystemTime::now"]);
    assert_eq!(refused("let a = <::std::time::SystemTime>::now();"), ["std::time::SystemTime::now"]);
    assert_eq!(refused("<ThreadRng as Default>::default()"), ["ThreadRng::default"]);
    assert_eq!(refused("f(<JoinSet<Vec<u8>>>::new)"), ["JoinSet::new"]);
    passes("<A as Clock<Instant = u8>>::now(); <Vec<SystemTime>>::new(); a < SystemTime && b > ::c::now()");
    assert_eq!(refused("a < b && c > ::std::env::var(d)"), ["std::env::var"]);
}

#[test]
fn names_are_resolved_by_imports_in_body() {
    assert_eq!(refused("use rand::random; random()"), ["random"]);
    assert_eq!(
        refused("use std::{time::{SystemTime as Now, Duration}, fs}; Now::now(); fs::read(a)"),
        ["Now::now", "fs::read"]
    );
    assert_eq!(refused("use tokio::time::{self, sleep}; sleep(a); time::sleep(b)"), ["sleep", "time::sleep"]);
    assert_eq!(refused("ids.map(|_| a).map(random); use ::rand::random; ids.map(random)"), ["random"]);
    passes("use crate::clock::SystemTime; SystemTime::now(); use rand::random as _; random()");
    passes("{ use rand::random; } random(); use rand::random; let random = 4; f(random)");
    passes("crate::fs::read(a); self::env::var(b); super::SystemTime::now()");
}

#[test]
fn elapsed_is_refused_only_on_system_time() {
    assert_eq!(refused("wf.now().elapsed()"), ["elapsed"]);
    assert_eq!(refused("let began = wf.now(); wf.sleep(a).await?; began.elapsed()? > limit"), ["elapsed"]);
    assert_eq!(refused_with("due: SystemTime", "due.elapsed().is_ok()"), ["elapsed"]);
    assert_eq!(refused_with("due: &std::time::SystemTime", "if due.elapsed()? > a {}"), ["elapsed"]);
    assert_eq!(refused("let a: SystemTime = wf.run(b).await?; a.elapsed()"), ["elapsed"]);
    assert_eq!(
        refused("SystemTime::UNIX_EPOCH.elapsed(); f(SystemTime::elapsed)"),
        ["elapsed", "SystemTime::elapsed"]
    );
    passes(
        "report.elapsed(); began.elapsed(); self.due.elapsed(); let a = wf.now(); a.elapsed; a.elapsed(b)",
    );
    passes("let a = wf.now(); wf.step(\"a\", || async { a.elapsed() })");
    passes("let a = wf.now(); wf.sleep(b); let a = report(a); a.elapsed()");
    passes("let a = wf.now(); let a = report(a); { let b = wf.now(); } b.elapsed()");
    passes(
        "let a = wf.now(); reports.map(|a| a.elapsed()); for a in b { a.elapsed() } if let Some(a) = c { a.elapsed() }",
    );
    passes("let a = wf.now(); fn took(a: Report) -> X { a.elapsed() }");
    assert_eq!(refused("let a = wf.now(); { let a = 1; } a.elapsed()"), ["elapsed"]);
}

#[test]
fn closure_in_step_of_non_workflow_value_is_linted() {
    let refused =
        |body: &str| refused_with("machine: &Machine", &body.replace("(..)", "(\"a\", || fs::read(b))"));
    for body in [
        "machine.step(..)",
        "let m = Machine::new(); m.step(..)",
        "let mut m = Machine::new(machine.size).with(vec![4]); m.step(..)",
        "let m = Machine { size: 4 }; m.tx(..)",
    ] {
        assert_eq!(refused(body), ["fs::read"], "{body}");
    }
    // These may contain a workflow's context.
    for body in [
        "let b = wf.branch(\"b\"); b.step(..)",
        "let b: Branch<'_> = f(); b.step(..)",
        "let flow = Flow::new(wf); flow.step(..)",
        "let flow = Flow { wf }; flow.step(..)",
        "let w = wf; w.step(..)",
        "let c = &b; c.step(..)",
        "let made = make(); made.step(..)",
        "let late; late = wf; late.step(..)",
        "all.map(|machine| machine.step(..))",
        "for machine in all { machine.step(..) }",
        "fn inner(machine: &Wf) { machine.step(..) } inner(wf)",
        "other.step(..)",
        "self.wf.step(..)",
    ] {
        assert_eq!(refused(body), [""; 0], "{body}");
    }
}

#[test]
fn steps_in_hash_map_order_are_refused() {
    let body = "{ wf.run(pay(name)).await?; }";
    for over in ["wages", "&wages", "&mut wages", "wages.iter()", "wages.keys()", "wages.drain()"] {
        let looped = format!("for (name, _) in {over} {body}");
        for ty in ["HashMap<String, u64>", "&std::collections::HashMap<String, Vec<u64>>", "HashSet<String>"]
        {
            assert_eq!(refused_with(&format!("wages: {ty}"), &looped), ["wages"], "{ty} {looped}");
        }
        for ty in
            ["BTreeMap<String, u64>", "HashMap<String, u64, Fixed>", "HashSet<u8, Fixed>", "Vec<HashSet<u8>>"]
        {
            assert_eq!(refused_with(&format!("wages: {ty}"), &looped), [""; 0], "{ty} {looped}");
        }
    }
    let made = |value: &str| refused(&format!("let wages{value}; for name in &wages {body}"));
    for value in
        [" = HashMap::new()", ": HashSet<_> = a.collect()", " = std::collections::HashSet::from([1])"]
    {
        assert_eq!(made(value), ["wages"], "{value}");
    }
    for value in
        [" = HashMap::with_hasher(a)", " = sorted(HashMap::new())", ": Vec<_> = a.into_iter().collect()"]
    {
        assert_eq!(made(value), [""; 0], "{value}");
    }
    // None of these creates a step in that order.
    for body in [
        "for n in wages.values() { sum += n; }",
        "for n in &wages { let b = wf.branch(n); all.push(async move { b.run(pay(n)).await }); }",
        "for n in &wages { notify(n).await; }",
        "for n in &wages { if n == wanted { wf.run(pay(n)).await?; } }",
        "for n in &wages { if n != wanted { continue; } wf.run(pay(n)).await?; }",
        "for n in wages.iter().sorted() { wf.run(pay(n)).await?; }",
        "let mut names: Vec<_> = wages.keys().collect(); names.sort(); for n in names { wf.run(pay(n)).await?; }",
        "let wages = sorted(wages); for n in &wages { wf.run(pay(n)).await?; }",
        "wf.step(\"a\", || async { for n in &wages { wf.run(pay(n)).await?; } })",
    ] {
        assert_eq!(refused_with("wages: HashMap<String, u64>", body), [""; 0], "{body}");
    }
}

#[test]
fn process_and_thread_specific_values_are_refused() {
    assert_eq!(
        refused("std::process::id(); thread::current().id(); env::temp_dir(); RandomState::new()"),
        ["std::process::id", "thread::current", "env::temp_dir", "RandomState::new"]
    );
    passes("process::id(&order); thread::current(page); f(process::id); process::exit(1)");
}

#[test]
fn inline_step_name_is_linted_as_workflow_code() {
    assert_eq!(refused("wf.step(&format!(\"{}\", Uuid::new_v4()), || Uuid::new_v4())"), ["Uuid::new_v4"]);
    passes("wf.step(name::<A, B>(), || Uuid::new_v4())");
    assert_eq!(refused("Wf::step(wf, Uuid::new_v4(), || fs::read(a))"), ["Uuid::new_v4"]);
}

#[test]
fn nested_job_and_workflow_definitions_are_not_linted() {
    passes("#[job] async fn read(a: A) -> Result<B> { fs::read(a) }");
    passes("#[runledger::workflow(timeout = \"1s\")] #[must_use] async fn flow(wf: &Wf) { fs::read(a) }");
    assert_eq!(refused("#[job] async fn a() {} fs::read(b)"), ["fs::read"]);
    assert_eq!(refused("#[inline] fn a() { fs::read(b) }"), ["fs::read"]);
}

#[test]
fn invalid_tokens_do_not_hide_later_call() {
    for body in
        "a:: :: . # #! #[] fn use let a::<b a::<{} wf.step wf.step() wf.step(,|) ! a! .. 'a".split(' ')
    {
        assert_eq!(refused(&format!("({body}) SystemTime::now()")), ["SystemTime::now"], "{body}");
    }
}

#[test]
fn lint_sees_through_invisible_groups() {
    use proc_macro2::{Delimiter, Group, TokenTree};
    let invisible =
        |text: &str| -> TokenTree { Group::new(Delimiter::None, text.parse().expect("tokens")).into() };
    let call: TokenStream =
        [invisible("SystemTime"), invisible(":: now"), invisible("()")].into_iter().collect();
    assert_eq!(mentions(&call, &[]).iter().filter(|mention| rule_of(mention).is_some()).count(), 1);
    let step: TokenStream =
        [invisible("wf"), invisible(". step"), invisible("(a, fs::read)")].into_iter().collect();
    assert_eq!(mentions(&step, &[]).iter().filter(|mention| rule_of(mention).is_some()).count(), 0);
}
