//! The command line, as operators run it: a program beside the workers, without their code.

use std::process::Stdio;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{
    AnyCall, ClientError, GateHandle, GateLinkKey, Graph, GraphHandle, GraphPicture, JobOverrides, RunState,
    enqueue_all,
};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

use crate::logs;
use crate::pictures::reading::xml;

#[job]
async fn ships(approved: u64) -> Result<u64> {
    Ok(approved)
}

#[job(max_attempts = 1)]
async fn spills() -> Result<()> {
    Err(Error::terminal("wet \u{1b}[31mpaint\u{9b}1m\nand a second line"))
}

#[workflow]
async fn packs(wf: &Wf) -> Result<()> {
    wf.step("wrap", || async { Ok::<_, Error>("\u{9b}paper".to_owned()) }).await?;
    wf.step("count", || async { Ok::<_, Error>(u64::MAX) }).await?;
    Ok(())
}

#[job(name = "cli.present", aliases = ["cli.former"])]
async fn renamed() -> Result<()> {
    Ok(())
}

#[job]
async fn rests() -> Result<()> {
    Ok(())
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    /// Returns the output of a successful command.
    #[track_caller]
    fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Returns the single JSON value of the output.
    #[track_caller]
    fn value(self) -> Value {
        serde_json::from_str(&self.done()).unwrap()
    }

    /// Returns the error text of a refused command.
    #[track_caller]
    fn refused(self) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (Some(1), ""), "{self:?}");
        self.stderr
    }
}

async fn cli(fixture: &Fixture, arguments: &[&str]) -> Ended {
    cli_at(fixture.database.url(), arguments).await
}

async fn cli_at(url: &str, arguments: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_runledger_cli"));
    command.args(arguments).env("DATABASE_URL", url).env("USER", "ann").stdin(Stdio::null());
    // A project's folder might have an embedded database.
    command.current_dir("/").env_remove("CARGO_MANIFEST_DIR");
    let output = soon(command.kill_on_drop(true).output()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    let raw = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
    assert!(
        !raw(&stdout) && !raw(&stderr),
        "a control character reaches the terminal: {stdout:?} {stderr:?}"
    );
    Ended { code: output.status.code(), stdout, stderr }
}

#[tokio::test(flavor = "multi_thread")]
async fn gate_requiring_value_refuses_completion_without_one() {
    let fixture = Fixture::new().await;
    let run = release(&fixture.db).await.id().to_string();
    let said = cli(&fixture, &["gate", "complete", &run, "approved"]).await.refused();
    assert!(said.contains("needs a value and none was given; nothing was written"), "{said}");
    assert!(said.contains("it takes an integer") && said.contains("--value '1'"), "{said}");
    let said = cli(&fixture, &["gate", "complete", &run, "approved", "--value", "true"]).await.refused();
    assert!(said.contains("`$` takes an integer"), "{said}");
    assert_eq!(scalar::<i64>(&fixture.db, "select count(*) from runledger.gate_decision").await, 0);
    execute(&fixture.db, "delete from runledger.gate").await;
    let said = cli(&fixture, &["gate", "complete", &run, "approved"]).await.refused();
    assert!(said.contains("`--value null` for none"), "{said}");

    let mut graph = Graph::new("unit");
    graph.gate::<()>("go");
    let run = graph.enqueue(&fixture.db).await.unwrap().id().to_string();
    cli(&fixture, &["gate", "complete", &run, "go"]).await.done();
}

#[tokio::test]
async fn revoked_link_decides_nothing_and_gate_stays_open() {
    let fixture = Fixture::new().await;
    let handle = release(&fixture.db).await;
    let (run, key) = (handle.id().to_string(), GateLinkKey::new([1; 32]).unwrap());
    let hour = Duration::from_secs(3600);
    let text = handle.gate("approved").link_to_complete(&key, hour, &7_u64).await.unwrap();
    let said = cli(&fixture, &["gate", "revoke-links", &run, "approved"]).await.done();
    assert_eq!(
        said,
        format!("revoked every link to gate `approved` of graph `{run}` that was signed before now\n")
    );
    let error = fixture.db.gate_link(&key, &text).unwrap().decide().await.unwrap_err();
    assert!(matches!(error, ClientError::LinkRevoked { .. }), "{error}");
    let said = cli(&fixture, &["--json", "gate", "revoke-links", &run, "approved"]).await.value();
    assert_eq!(said, json!({"run_id": run, "gate": "approved", "revoked": true}));
    let said = cli(&fixture, &["gate", "revoke-links", &run, "aproved"]).await.refused();
    assert!(said.contains("did you mean `approved`?"), "{said}");
    cli(&fixture, &["gate", "complete", &run, "approved", "--value", "7"]).await.done();
}

/// Enqueues a graph that waits for a gate, and returns the value of the gate.
async fn release(db: &Db) -> GraphHandle<u64> {
    let mut graph = Graph::new("release");
    let approved = graph.gate::<u64>("approved");
    let shipped = graph.then(ships, (approved,));
    graph.result(shipped).enqueue(db).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn gate_complete_command_releases_graph_and_records_decider_and_reason() {
    let fixture = Fixture::new().await;
    let worker = worker(&fixture.db, jobs![ships]).await;
    let graph = release(&fixture.db).await;
    let run = graph.id().to_string();
    let complete = ["gate", "complete", &run, "approved", "--value", "7", "--reason", "looks\u{1b} good"];
    let said = cli(&fixture, &complete).await.done();
    let told =
        format!("gate `approved` of graph `{run}` is completed, decided by `ann`: looks\\u{{1b}} good\n");
    assert_eq!(said, told);
    assert_eq!(soon(graph.result()).await.unwrap(), 7);

    let again = ["gate", "complete", &run, "approved", "--value", " 7 ", "--by", "bob", "--json"];
    let kept = cli(&fixture, &again).await.value();
    let expected = json!({ "run_id": run, "gate": "approved", "state": "completed", "decided_by": "ann", "reason": "looks\u{1b} good" });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&kept[key], value, "the first decision stays: {kept}");
    }
    let sentence =
        format!("the gate `approved` of graph `{run}` has a decision already by `ann` and is completed");
    for other in [
        ["gate", "complete", &run, "approved", "--value", "8"].as_slice(),
        &["gate", "fail", &run, "approved", "no", "--json"],
        &["gate", "cancel", &run, "approved", "no", "--by", "bob"],
    ] {
        let refused = cli(&fixture, other).await.refused();
        assert!(refused.starts_with("error: ") && refused.contains(&sentence), "{refused}");
    }
    let nodes = graph.nodes().await.unwrap();
    let gate = nodes.iter().find(|node| node.name == "approved").unwrap();
    assert_eq!((gate.decided_by.as_deref(), gate.reason.as_deref()), (Some("ann"), Some("looks\u{1b} good")));
    worker.stop().await;
}

#[tokio::test]
async fn gate_fail_and_cancel_commands_match_library_decisions() {
    let fixture = Fixture::new().await;
    for (verb, state, kept) in
        [("fail", RunState::Failed, "too late"), ("cancel", RunState::Cancelled, "cancelled: too late")]
    {
        let graph = release(&fixture.db).await;
        let run = graph.id().to_string();
        let said = cli(&fixture, &["gate", verb, &run, "approved", "too late", "--by", "bob"]).await.done();
        assert_eq!(said, format!("gate `approved` of graph `{run}` is {state}, decided by `bob`\n"));
        let node = graph.nodes().await.unwrap().into_iter().find(|node| node.name == "approved").unwrap();
        assert_eq!((node.state, node.error.unwrap().message.as_str()), (state, kept));
        // The library accepts the same decision again.
        let gate: GateHandle<'_, u64> = graph.gate("approved");
        if verb == "fail" {
            gate.fail("too late").await.unwrap();
        } else {
            gate.cancel("too late").await.unwrap();
        }
    }
}

#[tokio::test]
async fn missing_target_exits_with_code_1_and_library_error() {
    let fixture = Fixture::new().await;
    let nobody = Uuid::now_v7().to_string();
    for command in [
        ["graph", &nobody].as_slice(),
        &["run", &nobody, "--all"],
        &["steps", &nobody],
        &["timeline", &nobody],
        &["logs", &nobody, "--json"],
        &["cancel", &nobody, "why"],
        &["pause", &nobody, "why"],
        &["resume", &nobody],
    ] {
        let refused = cli(&fixture, command).await.refused();
        assert!(refused.contains(&format!("there is no run `{nobody}`")), "{command:?}: {refused}");
    }
    let refused = cli(&fixture, &["gate", "complete", &nobody, "approved"]).await.refused();
    assert!(refused.contains("has no gate `approved`"), "{refused}");
    let graph = release(&fixture.db).await.id().to_string();
    let refused = cli(&fixture, &["gate", "complete", &graph, "aproved"]).await.refused();
    assert!(refused.contains("did you mean `approved`?"), "{refused}");
    let run = rests().enqueue(&fixture.db).await.unwrap().id().to_string();
    let refused = cli(&fixture, &["graph", &run]).await.refused();
    assert_eq!(refused, format!("error: run `{run}` is of job `rests`, and no graph\n"));
    let refused = cli(&fixture, &["enable", "rests"]).await.refused();
    assert!(refused.contains("job `rests` is not disabled under this name"), "{refused}");
}

#[tokio::test]
async fn wrong_usage_exits_with_code_2_before_connecting() {
    let run = Uuid::nil().to_string();
    for command in [
        [].as_slice(),
        &["gates"],
        &["runs"],
        &["runs", "--tenant", "acme", "--all"],
        &["runs", "--all", "--state", "gone"],
        &["runs", "--all", "--after", "1"],
        &["runs", "--all", "--limit", "0"],
        &["run", &run],
        &["run", "1", "--all"],
        &["metrics"],
        &["metrics", "--all", "--window", "1"],
        &["permits", "gpu"],
        &["permits", "gpu", "2", "--forget"],
        &["graph", &run, "--json", "--format", "svg"],
        &["gate", "complete", &run, "approved", "--value", "{"],
        &["gate", "fail", &run, "approved"],
        &["cancel", &run],
        &["timeline"],
        &["timeline", &run, "--all"],
    ] {
        let ended = cli_at("postgres://nobody@localhost:1/nowhere", command).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{command:?}: {}", ended.stderr);
    }
    let ended = cli_at("", &["resources"]).await;
    assert!(ended.code == Some(2) && ended.stderr.contains("set `DATABASE_URL`"), "{ended:?}");
}

#[tokio::test]
async fn command_refuses_missing_schema_and_does_not_create_it() {
    let fixture = Fixture::new().await;
    execute(&fixture.db, "drop schema runledger cascade").await;
    for command in [["resources"].as_slice(), &["permits", "gpu", "2"], &["enable", "rests"]] {
        let refused = cli(&fixture, command).await.refused();
        assert!(refused.contains("the schema `runledger` is not in this database"), "{refused}");
    }
    let there: i64 =
        scalar(&fixture.db, "select count(*) from pg_namespace where nspname = 'runledger'").await;
    assert_eq!(there, 0);
}

#[tokio::test]
async fn graph_command_prints_picture_in_each_format() {
    let fixture = Fixture::new().await;
    let run = release(&fixture.db).await.id().to_string();
    let table = cli(&fixture, &["graph", &run]).await.done();
    assert!(table.contains("approved") && table.contains("open: nobody has decided"), "{table}");
    assert_eq!(cli(&fixture, &["graph", &run, "--format", "table"]).await.done(), table);
    let dot = cli(&fixture, &["graph", &run, "--format", "dot"]).await.done();
    assert!(dot.starts_with("digraph") && dot.ends_with("}\n"), "{dot}");
    xml(&cli(&fixture, &["graph", &run, "--format", "svg"]).await.done());
    let json = cli(&fixture, &["graph", &run, "--format", "json"]).await.done();
    let picture = GraphPicture::from_json(&json).unwrap();
    assert_eq!(picture, fixture.db.graph::<()>(run.parse().unwrap()).picture().await.unwrap());
    assert_eq!(cli(&fixture, &["graph", &run, "--json"]).await.done(), json);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_command_filters_by_scope_and_pages_results() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    for _ in 0..3 {
        rests().tenant("acme").enqueue(db).await.unwrap();
    }
    rests().queue("slow").enqueue(db).await.unwrap();
    let jobs = async |wanted: &[&str]| {
        let page = cli(&fixture, &[&["runs", "--json"], wanted].concat()).await.value();
        page["runs"].as_array().unwrap().len()
    };
    assert_eq!(jobs(&["--tenant", "acme"]).await, 3);
    assert_eq!(jobs(&["--global"]).await, 1);
    assert_eq!(jobs(&["--all", "--job", "rests"]).await, 4);
    assert_eq!(jobs(&["--all", "--queue", "slow", "--state", "queued"]).await, 1);
    assert_eq!(jobs(&["--all", "--state", "failed", "--state", "running"]).await, 0);

    let first = cli(&fixture, &["runs", "--tenant", "acme", "--limit", "2", "--json"]).await.value();
    let place = first["next"].as_str().unwrap();
    let second = cli(&fixture, &["runs", "--tenant", "acme", "--after", place, "--json"]).await.value();
    let ids = |page: &Value| -> Vec<String> {
        let ids =
            page["runs"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().to_owned());
        ids.collect()
    };
    assert_eq!((ids(&first).len(), ids(&second).len()), (2, 1));
    assert!(!ids(&first).contains(&ids(&second)[0]));
    let table = cli(&fixture, &["runs", "--tenant", "acme", "--limit", "2"]).await.done();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("RUN ") && lines[1].starts_with(&ids(&first)[0]), "{table}");
    assert_eq!(lines[3], format!("there may be more: --after {place}"));

    let mine = &ids(&second)[0];
    let refused = cli(&fixture, &["run", mine, "--tenant", "other"]).await.refused();
    assert!(refused.contains("there is no run"), "{refused}");
    assert_eq!(cli(&fixture, &["run", mine, "--tenant", "acme", "--json"]).await.value()["job"], "rests");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_error_steps_and_timeline_are_printed_without_control_characters() {
    let fixture = Fixture::new().await;
    let worker = worker(&fixture.db, jobs![spills, packs]).await;
    let failed = spills().enqueue(&fixture.db).await.unwrap();
    let packed = packs().enqueue(&fixture.db).await.unwrap();
    soon(failed.result()).await.unwrap_err();
    soon(packed.result()).await.unwrap();
    let (failed, packed) = (failed.id().to_string(), packed.id().to_string());

    let said = cli(&fixture, &["run", &failed, "--all"]).await.done();
    assert!(said.contains("error           wet \\u{1b}[31mpaint\\u{9b}1m\\nand a second line"), "{said}");
    let value = cli(&fixture, &["run", &failed, "--global", "--json"]).await.value();
    assert_eq!((&value["state"], value["attempts"].as_array().unwrap().len()), (&json!("failed"), 1));
    assert_eq!(value["error"]["message"], "wet \u{1b}[31mpaint\u{9b}1m\nand a second line");
    assert!(value["created_at"].as_str().unwrap().ends_with('Z'));

    let said = cli(&fixture, &["steps", &packed]).await.done();
    assert!(said.contains("wrap") && said.contains("\\u{9b}paper"), "{said}");
    let steps = cli(&fixture, &["steps", &packed, "--json"]).await.value();
    assert_eq!((&steps[0]["output"], &steps[1]["output"]), (&json!("\u{9b}paper"), &json!(u64::MAX)));
    let said = cli(&fixture, &["timeline", &packed]).await.done();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("AT ") && lines[1].contains("created"), "{said}");
    assert!(lines[3].contains("step completed") && lines[3].contains("wrap"), "{said}");
    let told = cli(&fixture, &["timeline", &failed, "--json"]).await.value();
    let events: Vec<&str> = told.as_array().unwrap().iter().map(|it| it["what"].as_str().unwrap()).collect();
    assert_eq!(events, ["created", "attempt_began", "failed"], "{told}");
    assert_eq!((&told[1]["attempt"], &told[1]["worker_id"]), (&json!(1), &json!(worker.id())));
    assert_eq!(cli(&fixture, &["logs", &packed]).await.done(), "", "its worker keeps no logs");
    assert_eq!(cli(&fixture, &["logs", &packed, "--json"]).await.value(), json!([]));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_command_prints_run_logs_from_given_line() {
    let fixture = Fixture::new().await;
    let worker = logs::worker(&fixture.db).await;
    let run = logs::speaks().enqueue(&fixture.db).await.unwrap();
    soon(run.result()).await.unwrap();
    worker.stop().await;
    let kept = run.logs(1).await.unwrap();
    let id = run.id().to_string();
    let said = cli(&fixture, &["logs", &id]).await.done();
    assert_eq!(said.lines().count(), kept.len());
    let first = said.lines().next().unwrap();
    assert!(first.starts_with("1 ") && first.ends_with("begins count=3 who=ann"), "{said}");
    let last = kept.last().unwrap();
    let lines = cli(&fixture, &["logs", &id, "--from", &last.number.to_string(), "--json"]).await.value();
    assert_eq!(lines.as_array().unwrap().len(), 1);
    assert_eq!((&lines[0]["number"], &lines[0]["message"]), (&json!(last.number), &json!(last.message)));
}

#[tokio::test]
async fn commands_pause_resume_and_cancel_run() {
    let fixture = Fixture::new().await;
    let run = rests().enqueue(&fixture.db).await.unwrap();
    let id = run.id().to_string();
    let said = cli(&fixture, &["pause", &id, "the disk is full"]).await.done();
    assert_eq!(said, format!("run `{id}` is paused\n"));
    let info = until(&fixture.db, run.id(), |info| info.state == RunState::Paused).await;
    assert_eq!(info.pause_reason.as_deref(), Some("the disk is full"));
    assert_eq!(cli(&fixture, &["resume", &id, "--json"]).await.value()["resume"], "resumed");
    let refused = cli(&fixture, &["resume", &id]).await.refused();
    assert!(refused.contains("is queued, so it cannot be resumed"), "{refused}");
    assert_eq!(cli(&fixture, &["cancel", &id, "not needed", "--json"]).await.value()["cancel"], "cancelled");
    let info = run.info().await.unwrap();
    assert_eq!(
        (info.state, info.error.unwrap().message.as_str()),
        (RunState::Cancelled, "cancelled: not needed")
    );
    let said = cli(&fixture, &["cancel", &id, "again"]).await.done();
    assert!(said.contains("was cancelled already"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn disable_and_enable_commands_preserve_other_job_overrides() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let worker = worker(db, jobs![rests, ships]).await;
    let stored = async || {
        let stored = db.overrides().await.unwrap();
        stored.into_iter().map(|stored| (stored.job, stored.overrides)).collect::<Vec<_>>()
    };
    let own = JobOverrides::new().max_attempts(20);
    db.set_overrides("rests", own.clone()).await.unwrap();
    cli(&fixture, &["disable", "rests", "the provider is down"]).await.done();
    cli(&fixture, &["disable", "ships", "no paper", "--json"]).await.value();
    let disabled = own.clone().disabled("the provider is down");
    let ships = ("ships".to_owned(), JobOverrides::new().disabled("no paper"));
    assert_eq!(stored().await, [("rests".to_owned(), disabled), ships.clone()]);
    cli(&fixture, &["enable", "rests"]).await.done();
    assert_eq!(stored().await, [("rests".to_owned(), own.clone()), ships]);
    cli(&fixture, &["enable", "ships"]).await.done();
    assert_eq!(
        stored().await,
        [("rests".to_owned(), own)],
        "of a job of which nothing is said any more nothing stays"
    );
    let refused = cli(&fixture, &["disable", "shipz", "a slip"]).await.refused();
    assert!(refused.contains("no job `shipz` is known"), "{refused}");
    worker.stop().await;
}

#[tokio::test]
async fn commands_set_and_forget_permits_and_print_resources_and_metrics() {
    let fixture = Fixture::new().await;
    rests().resource("gpu").enqueue(&fixture.db).await.unwrap();
    assert_eq!(
        cli(&fixture, &["permits", "gpu", "2"]).await.done(),
        "resource `gpu` has 2 permits; nothing was said before\n"
    );
    let gpu = json!([{ "resource": "gpu", "permits": 2, "is_said": true, "held": 0, "waiting": 1 }]);
    assert_eq!(cli(&fixture, &["resources", "--json"]).await.value(), gpu);
    let table = "RESOURCE  PERMITS  SAID  HELD  WAITING\ngpu       2        yes   0     1\n";
    assert_eq!(cli(&fixture, &["resources"]).await.done(), table);
    let forgotten = cli(&fixture, &["permits", "gpu", "--forget", "--json"]).await.value();
    assert_eq!(forgotten, json!({ "resource": "gpu", "permits": null, "before": 2 }));
    let refused = cli(&fixture, &["permits", "gpu", "10001"]).await.refused();
    assert!(refused.contains("at most 10000"), "{refused}");
    let metrics = cli(&fixture, &["metrics", "--global", "--window", "15m", "--json"]).await.value();
    assert_eq!((&metrics["jobs"][0]["job"], &metrics["jobs"][0]["queued"]), (&json!("rests"), &json!(1)));
    let table = cli(&fixture, &["metrics", "--all"]).await.done();
    assert!(table.starts_with("TENANT  JOB    QUEUED") && table.contains("rests"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn adopt_command_adopts_copied_database() {
    let fixture = Fixture::new().await;
    rests().enqueue(&fixture.db).await.unwrap();
    execute(&fixture.db, "update runledger.installation set database = 0").await;
    let adopted = cli(&fixture, &["adopt"]).await.done();
    assert!(adopted.starts_with("this database was a copy and is installation `"), "{adopted}");
    let id: Uuid = scalar(&fixture.db, "select id from runledger.installation").await;
    let again = cli(&fixture, &["adopt", "--json"]).await.value();
    assert_eq!(again, json!({ "installation": id, "was_copy": false }));
    worker(&fixture.db, jobs![rests]).await.stop().await;
}

#[tokio::test]
async fn runs_of_renamed_job_are_listed_under_stored_name() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    renamed().enqueue(db).await.unwrap();
    enqueue_all([AnyCall::by_name("cli.former", &json!({}))], db).await.unwrap();
    let earlier = renamed().enqueue(db).await.unwrap().id();
    // The run as an older program stored it, before the job was renamed.
    execute(db, &format!("update runledger.run set job = 'cli.former' where run_id = '{earlier}'")).await;
    let names = async |names: &[&str]| {
        let named = names.iter().flat_map(|name| ["--job", *name]);
        let arguments: Vec<&str> = ["runs", "--all", "--json"].into_iter().chain(named).collect();
        let page = cli(&fixture, &arguments).await.value();
        let runs = page["runs"].as_array().unwrap().iter();
        runs.map(|run| run["job"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["cli.present"]).await, ["cli.present", "cli.present"]);
    assert_eq!(names(&["cli.former"]).await, ["cli.former"]);
    assert_eq!(names(&["cli.present", "cli.former"]).await.len(), 3);
}
