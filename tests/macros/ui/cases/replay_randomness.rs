use runledger::{Result, Wf, workflow};

mod rand {
    pub struct OsRng;

    pub fn random<T: Default>() -> T {
        T::default()
    }

    pub fn thread_rng() -> OsRng {
        OsRng
    }
}

use rand::{OsRng, thread_rng};

#[workflow]
async fn checkout(wf: &Wf) -> Result<u64> {
    let _rngs = [thread_rng(), OsRng];
    let dice = || rand::random::<u64>();
    Ok(dice() + u64::from(wf.tenant().is_empty()))
}

fn main() {
    let _ = checkout();
}
