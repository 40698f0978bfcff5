//! Names that could collide with generated ones.

use ::runledger::{Call, Error, Result, Tx, Wf, Wf as Context, job, workflow};
use ::std::prelude::rust_2024::*;

/// A type with the name of a re-exported one.
#[derive(Debug, Clone, Copy, ::serde::Serialize, ::serde::Deserialize)]
pub struct Definition;

/// Likewise.
#[derive(Debug, Clone, Copy, ::serde::Serialize, ::serde::Deserialize)]
pub enum Job {
    /// Only this.
    One,
}

/// Modules with the names of crates.
pub mod runledger {}
/// Likewise.
pub mod std {}
/// Likewise.
pub mod core {}
/// Likewise.
pub mod inventory {}

const fn run() -> u32 {
    1
}

#[job]
pub async fn internals(
    invocation: u32,
    tx: u32,
    #[default = run()] run: u32,
    result: u32,
    value: Definition,
    finished: Job,
    wf: u32,
) -> Result<u32> {
    let (Definition, Job::One) = (value, finished);
    Ok(invocation + tx + run + result + wf + 1)
}

#[job]
pub async fn with_tx(invocation: u32, result: u32, #[inject] tx: &mut Tx) -> Result<u32> {
    ::sqlx::raw_sql("select 1").execute(&mut **tx).await?;
    Ok(invocation + result)
}

#[workflow]
pub async fn with_wf(invocation: &Wf, wf: u64) -> Result<u64> {
    Ok(wf + invocation.step("seven", || async { Ok::<u64, Error>(7) }).await?)
}

#[job]
pub async fn r#type(r#match: u32) -> Result<u32> {
    Ok(r#match)
}

#[job]
pub async fn into(call: u32) -> Result<u32> {
    Ok(call)
}

/// Twelve parameters, the maximum.
#[job(name = "a")]
#[expect(
    clippy::many_single_char_names,
    clippy::too_many_arguments,
    reason = "the names only tell the twelve apart"
)]
pub async fn twelve(
    a: u8,
    b: u8,
    c: u8,
    d: u8,
    e: u8,
    f: u8,
    g: u8,
    h: u8,
    i: u8,
    j: u8,
    k: u8,
    l: u8,
) -> Result<u32> {
    Ok([a, b, c, d, e, f, g, h, i, j, k, l].into_iter().map(u32::from).sum())
}

/// In its own body, its name means the function that callers see.
#[job]
pub async fn again(left: u32, #[inject] step: &u32) -> Result<u32> {
    let next: Call<_> = again(left - step);
    drop(next);
    Ok(left - step)
}

/// The context's type is checked by the compiler, not by its name.
#[workflow]
pub async fn renamed(
    ctx: &Context,
    #[expect(unused_variables, reason = "attributes of parameters stay")] text: &str,
) -> Result<String> {
    Ok(ctx.tenant().to_owned())
}

/// An expectation of a lint that generated code allows.
#[job]
#[expect(clippy::unused_async, reason = "a job is async even where nothing is awaited")]
pub async fn expecting() -> Result<()> {
    Ok(())
}

/// A lint about the function's name is reported once, on the user's function.
#[job(name = "loud")]
#[expect(non_snake_case, reason = "the name is given in the attribute")]
pub async fn Loud() -> Result<()> {
    Ok(())
}

#[job]
async fn private_and_unused(_ignored: u8) -> Result<()> {
    Ok(())
}

pub(crate) mod inner {
    //! Restricted visibility.
    use ::runledger::{Result, job};
    use ::std::prelude::rust_2024::*;

    #[job]
    pub(super) async fn restricted() -> Result<()> {
        Ok(())
    }
}

/// Definitions inside a function.
#[must_use]
pub fn local() -> &'static str {
    #[job]
    async fn nested(text: &str) -> Result<String> {
        Ok(text.to_owned())
    }
    let _ = inner::restricted();
    <Definition as Named>::name(&[::runledger::jobs![nested][0].name()])
}

trait Named {
    fn name<'a>(names: &[&'a str; 1]) -> &'a str {
        names[0]
    }
}
impl Named for Definition {}
