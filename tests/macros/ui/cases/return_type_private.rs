use runledger::{Result, job};

mod billing {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Receipt;

    #[job]
    pub async fn charge() -> Result<Receipt> {
        Ok(Receipt)
    }
}

fn main() {
    let _ = billing::charge();
}
