use std::fmt::Display;

use runledger::job;

/// Takes the money.
#[job(max_retries = 5, timeout = "30sec", name = "Charge", queue)]
pub fn charge<T: Display>(
    (euros, cents): (i64, i64),
    note: Option<&str>,
    #[inject] gateway: T,
    skus: &mut Vec<String>,
) {
    println!("{euros} {cents} {note:?} {gateway}");
    skus.clear();
}

fn main() {
    let _ = charge::<u8>((1, 2), None, &mut Vec::new());
}
