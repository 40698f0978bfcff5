use runledger::{Result, job};

#[job]
async fn charge(note: Option<&str>, pairs: &[(&str, u8)], name: std::borrow::Cow<'_, str>) -> Result<()> {
    let _ = (note, pairs, name);
    Ok(())
}

fn main() {}
