//! The test kit finds a payment without an idempotency key. A payment with one survives.

use runledger_tests::Fixture;

use crate::program::{example, run};

#[tokio::test]
async fn crash_test_finds_double_charge_only_without_idempotency_key() {
    let fixture = Fixture::new().await;
    let output = run(&mut example("crashes", &fixture)).output();
    let (without, with) = output.split_once("with a key: ").unwrap();
    assert!(without.starts_with("without a key: `checkout`, "), "{output}");
    assert!(without.contains("step `charge_anew`"), "{output}");
    assert!(
        without.contains(": the invariant does not hold: the customer has paid 2 times; repeat it alone: ")
    );
    assert!(with.starts_with("`checkout` survived "), "{output}");
}
