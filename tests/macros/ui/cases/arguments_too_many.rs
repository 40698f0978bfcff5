use runledger::{Result, job};

#[job]
#[allow(clippy::too_many_arguments)]
async fn charge(
    p1: u8,
    p2: u8,
    p3: u8,
    p4: u8,
    p5: u8,
    p6: u8,
    p7: u8,
    p8: u8,
    p9: u8,
    p10: u8,
    p11: u8,
    p12: u8,
    p13: u8,
) -> Result<u8> {
    Ok(p1 | p2 | p3 | p4 | p5 | p6 | p7 | p8 | p9 | p10 | p11 | p12 | p13)
}

fn main() {}
