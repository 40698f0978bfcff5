//! What is refused in a body, by its tokens.

use proc_macro2::TokenStream;
use quote::ToTokens;

use super::mentions::mentions;
use super::rules::rule_of;

/// The refused paths of a body, as they are written.
fn refused(body: &str) -> Vec<String> {
    let body: TokenStream = body.parse().expect("the body is tokens");
    let refused = mentions(&body).into_iter().filter(|mention| rule_of(mention).is_some());
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
fn the_end_of_a_path_decides() {
    assert_eq!(refused("SystemTime::now()"), ["SystemTime::now"]);
    assert_eq!(refused("let at = ::std::time::SystemTime::now();"), ["std::time::SystemTime::now"]);
    assert_eq!(refused("r#rand::random()"), ["r#rand::random"]);
    passes("SystemTime::now_or(later); Clock::now(); my::random()");
}

#[test]
fn a_name_that_may_be_anything_is_refused_only_where_it_cannot_be() {
    passes("sleep(ONE); spawn(task); now(); random(); timeout(step); query!(a); read(x)");
    passes("let thread_rng = 1; f(thread_rng); let getrandom = Shop { getrandom };");
    assert_eq!(refused("thread_rng().next()"), ["thread_rng"]);
    assert_eq!(refused("f(&mut OsRng, OsRng.next())"), ["OsRng", "OsRng"]);
    assert_eq!(refused("StdRng::from_entropy()"), ["StdRng::from_entropy"]);
    passes("StdRng::seed_from_u64(seed); Uuid::new_v5(&space, name)");
}

#[test]
fn methods_and_fields_are_not_functions() {
    passes("set.spawn(a).thread_rng().spawn_blocking(b); began.elapsed(); clock.now(); it.OsRng");
    passes("for n in 0..3 { n.getrandom() }");
    assert_eq!(refused("0..thread_rng()"), ["thread_rng"]);
    assert_eq!(refused("0..=thread_rng()"), ["thread_rng"]);
}

#[test]
fn a_function_that_is_given_away_is_refused_like_its_call() {
    assert_eq!(refused("id.unwrap_or_else(Uuid::new_v4)"), ["Uuid::new_v4"]);
    assert_eq!(refused("let clock = SystemTime::now;"), ["SystemTime::now"]);
}

#[test]
fn a_star_stands_for_functions_and_not_for_types() {
    assert_eq!(
        refused("fs::read(a); tokio::fs::write(b); env::var_os(c)"),
        ["fs::read", "tokio::fs::write", "env::var_os"]
    );
    passes("let file: Option<fs::File> = None; fs::Permissions::from_mode(1); env::consts::OS; io::stdout()");
    assert_eq!(refused("fastrand::u8(..); fastrand::Rng::new()"), ["fastrand::u8", "fastrand::Rng::new"]);
    passes("fastrand::Rng::with_seed(7); reqwest::StatusCode::OK; reqwest::Url::parse(a)");
}

#[test]
fn types_in_a_path_do_not_hide_it() {
    assert_eq!(refused("rand::random::<u64>()"), ["rand::random"]);
    assert_eq!(refused("sqlx::query_as::<_, (fn(u8) -> Vec<Vec<u8>>,)>(a)"), ["sqlx::query_as"]);
    assert_eq!(refused("JoinSet::<Vec<u8>>::new()"), ["JoinSet::new"]);
}

#[test]
fn macros_are_told_from_functions() {
    assert_eq!(
        refused("sqlx::query!(a); sqlx::query_as!{b}; sqlx::query(c)"),
        ["sqlx::query", "sqlx::query_as", "sqlx::query"]
    );
    assert_eq!(refused("nanoid!()"), ["nanoid"]);
    passes("nanoid(1); nanoid != 2; thread_rng!(); println!(a); eprintln!(b)");
}

#[test]
fn groups_closures_blocks_and_other_macros_hide_nothing() {
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
fn texts_comments_attributes_and_imports_do_nothing() {
    passes("\"SystemTime::now()\"; r#\"rand::random()\"#; /* Uuid::new_v4() */ 'a'; // fs::read(a)");
    passes("#[doc = fs::read()] #![cfg_attr(a, fs::read(b))] let a = 1;");
    passes("use std::{fs::read, time::SystemTime::now}; use rand::random;");
    passes("fn thread_rng() {} fn f() -> impl Sized + use<'a> {}");
    assert_eq!(refused("impl Sized + use<'a> { fs::read() }"), ["fs::read"]);
}

#[test]
fn the_body_of_an_inline_step_may_do_anything() {
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
fn a_closure_in_a_local_variable_is_the_body_of_the_steps_it_is_given_to() {
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
fn the_name_of_an_inline_step_belongs_to_the_workflow() {
    assert_eq!(refused("wf.step(&format!(\"{}\", Uuid::new_v4()), || Uuid::new_v4())"), ["Uuid::new_v4"]);
    passes("wf.step(name::<A, B>(), || Uuid::new_v4())");
    assert_eq!(refused("Wf::step(wf, Uuid::new_v4(), || fs::read(a))"), ["Uuid::new_v4"]);
}

#[test]
fn a_definition_inside_a_body_is_not_the_body() {
    passes("#[job] async fn read(a: A) -> Result<B> { fs::read(a) }");
    passes("#[runledger::workflow(timeout = \"1s\")] #[must_use] async fn flow(wf: &Wf) { fs::read(a) }");
    assert_eq!(refused("#[job] async fn a() {} fs::read(b)"), ["fs::read"]);
    assert_eq!(refused("#[inline] fn a() { fs::read(b) }"), ["fs::read"]);
}

#[test]
fn tokens_that_are_no_rust_are_walked_all_the_same() {
    for body in
        "a:: :: . # #! #[] fn use let a::<b a::<{} wf.step wf.step() wf.step(,|) ! a! .. 'a".split(' ')
    {
        assert_eq!(refused(&format!("({body}) SystemTime::now()")), ["SystemTime::now"], "{body}");
    }
}

#[test]
fn invisible_groups_are_seen_through() {
    use proc_macro2::{Delimiter, Group, TokenTree};
    let invisible =
        |text: &str| -> TokenTree { Group::new(Delimiter::None, text.parse().expect("tokens")).into() };
    let call: TokenStream =
        [invisible("SystemTime"), invisible(":: now"), invisible("()")].into_iter().collect();
    assert_eq!(mentions(&call).iter().filter(|mention| rule_of(mention).is_some()).count(), 1);
    let step: TokenStream =
        [invisible("wf"), invisible(". step"), invisible("(a, fs::read)")].into_iter().collect();
    assert_eq!(mentions(&step).iter().filter(|mention| rule_of(mention).is_some()).count(), 0);
}
