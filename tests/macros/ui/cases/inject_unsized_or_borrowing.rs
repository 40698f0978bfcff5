use runledger::{Result, job};

#[job]
async fn charge(
    #[inject] a: &dyn Send,
    #[inject] b: &str,
    #[inject] c: &Option<&u8>,
    #[inject] d: &'static u8,
) -> Result<()> {
    let _ = (a, b, c, d);
    Ok(())
}

fn main() {}
