//! The storage designs under comparison, each as a set of SQL statements.

#[derive(Clone, Copy)]
pub struct Variant {
    pub name: &'static str,
    pub schema: &'static str,
    pub enqueue: &'static str,
    pub claim: &'static str,
    pub settle: &'static str,
    pub checkpoint: &'static str,
    /// Finds priorities that have no lane yet, if the measurements need it.
    pub discover: Option<&'static str>,
    /// Whether a claim starts at the claimer's cursor, or at the lane's start each time.
    pub remembers: bool,
    pub look_back: bool,
}

pub const RETRY: &str = include_str!("../sql/retry.sql");
const CLAIM: &str = include_str!("../sql/claim.sql");

/// Parses `split` or `in-place`, followed by `+change` for each deviation from the proposed design.
pub fn variant(name: &str) -> Result<Variant, String> {
    let mut parts = name.split('+');
    let base = parts.next().unwrap_or_default();
    let mut variant = match base {
        "split" => split(name),
        "in-place" => in_place(name),
        other => return Err(format!("there is no storage shape `{other}`; use `split` or `in-place`")),
    };
    for change in parts {
        apply(&mut variant, change)?;
    }
    Ok(variant)
}

fn split(name: &str) -> Variant {
    Variant {
        name: leak(name),
        schema: include_str!("../sql/schema.sql"),
        enqueue: include_str!("../sql/enqueue.sql"),
        claim: CLAIM,
        settle: include_str!("../sql/settle.sql"),
        checkpoint: include_str!("../sql/checkpoint.sql"),
        discover: Some(include_str!("../sql/discover.sql")),
        remembers: true,
        look_back: true,
    }
}

fn in_place(name: &str) -> Variant {
    Variant {
        schema: include_str!("../sql/in_place_schema.sql"),
        enqueue: include_str!("../sql/in_place_enqueue.sql"),
        claim: include_str!("../sql/in_place_claim.sql"),
        settle: include_str!("../sql/in_place_settle.sql"),
        discover: None,
        ..split(name)
    }
}

fn apply(variant: &mut Variant, change: &str) -> Result<(), String> {
    match change {
        "forgets" => variant.remembers = false,
        "blind" => variant.look_back = false,
        "no-key" => replace(&mut variant.schema, "uuid not null primary key", "uuid not null"),
        "by-key" => variant.claim = leak(&variant.claim.replace("ready.ctid", "ready.run_id")),
        "ordered" => variant.claim = include_str!("../sql/claim_ordered.sql"),
        "settle-joined" => variant.settle = include_str!("../sql/settle_joined.sql"),
        "settle-locked" => variant.settle = include_str!("../sql/settle_locked.sql"),
        "heartbeat" => heartbeat(variant),
        "jsonb" => {
            replace(&mut variant.schema, " json", " jsonb");
            replace(&mut variant.enqueue, "::json", "::jsonb");
            replace(&mut variant.settle, "::json", "::jsonb");
            replace(&mut variant.checkpoint, "::json", "::jsonb");
        }
        "exists" => replace(&mut variant.checkpoint, "    for key share\n", "    offset 0\n"),
        "share" => replace(&mut variant.checkpoint, "for key share", "for share"),
        "no-worker-index" => {
            replace(&mut variant.schema, "create index lease_worker on hp.lease (worker);", "");
        }
        other => return Err(format!("there is no change `{other}`")),
    }
    Ok(())
}

/// Makes the claim also write its worker's heartbeat.
fn heartbeat(variant: &mut Variant) {
    let beat =
        "), beat as (\n  update hp.worker set seen_at = now() where worker = $8\n)\nselect taken.run_id";
    replace(&mut variant.claim, ")\nselect taken.run_id", beat);
}

fn replace(text: &mut &'static str, from: &str, to: &str) {
    assert!(text.contains(from), "a change looks for `{from}`, which is not in the statement");
    *text = leak(&text.replace(from, to));
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}
