//! Golden files of the macros' output. `INSTA_UPDATE=always cargo test` updates them.

use quote::quote;

use crate::define::define;
use crate::model::Kind;

fn expanded(kind: Kind, options: &str, item: &proc_macro2::TokenStream) -> String {
    let options = options.parse().expect("options are tokens");
    let items = syn::parse2(define(kind, options, item)).expect("the expansion is Rust");
    prettyplease::unparse(&items)
}

#[test]
fn plain_job_expands_to_golden_file() {
    let item = quote! {
        async fn refund(receipt: Receipt) -> Result<()> {
            drop(receipt);
            Ok(())
        }
    };
    insta::assert_snapshot!("plain_job", expanded(Kind::Job, "", &item));
}

#[test]
fn job_with_all_options_expands_to_golden_file() {
    let options = r#"
        name = "billing.charge", aliases = ["charge", "old"], queue = "payments", priority = -5, max_attempts = 5,
        timeout = "30s", backoff = "1s..5m", deadline = "1h", heartbeat = "10s", version = 4, accepts = "2..", crate = facade::ledger
    "#;
    let item = quote! {
        /// Takes the money.
        #[cfg(feature = "billing")]
        #[cfg_attr(feature = "old", deprecated, inline)]
        #[must_use = "it moves money"]
        #[tracing::instrument]
        pub(crate) async fn charge(
            mut order: Order,
            sku: &str,
            tags: &[String],
            root: &Path,
            #[allow(unused)] place: &Place,
            note: Option<String>,
            #[default] count: u32,
            #[default = "EUR"] currency: &str,
            #[default = Mode::Fast] r#type: Mode,
            #[inject] gateway: &Gateway,
        ) -> anyhow::Result<Receipt> {
            order.cents += 1;
            gateway.charge(order, sku).await
        }
    };
    insta::assert_snapshot!("job_with_everything", expanded(Kind::Job, options, &item));
}

#[test]
fn workflow_expands_to_golden_file() {
    let item = quote! {
        /// Buys.
        pub async fn checkout(wf: &Wf, order: Order, #[inject] mail: &Mail) -> Result<Confirmation> {
            wf.run(charge(order)).await
        }
    };
    insta::assert_snapshot!("workflow", expanded(Kind::Workflow, "version = 2", &item));
}

#[test]
fn transactional_job_expands_to_golden_file() {
    let item = quote! {
        async fn record_sale(cents: i64, #[inject] tx: &mut Tx) -> Result<i64> {
            Ok(cents)
        }
    };
    insta::assert_snapshot!("transactional_job", expanded(Kind::Job, "", &item));
}

#[test]
fn errors_keep_signature_and_repaired_body() {
    let item = quote! {
        /// Buys.
        #[must_use]
        pub const fn checkout<T: Send>(
            (order, cents): (Order, i64),
            #[inject] mail: &Mail,
            value: T,
        ) -> Result<T> {
            Ok(value)
        }
    };
    insta::assert_snapshot!("errors", expanded(Kind::Workflow, "max_retries = 5", &item));
}

#[test]
fn non_function_item_is_kept_beside_its_error() {
    let item = quote! {
        pub struct Charge {
            cents: i64,
        }
    };
    insta::assert_snapshot!("not_a_function", expanded(Kind::Job, "", &item));
}

#[test]
fn body_with_invalid_rust_is_kept_token_for_token() {
    let item = "async fn charge() -> Result<()> { wf.run(|x { let = } )}";
    let written = define(Kind::Job, quote!(), &item.parse().expect("the item is tokens")).to_string();
    assert!(written.contains("wf . run (| x { let = })"), "{written}");
    assert!(!written.contains("compile_error"), "{written}");
}

#[test]
fn expansion_is_deterministic() {
    let once = || {
        define(
            Kind::Job,
            quote!(),
            &quote!(
                async fn a(b: &str) -> Result<()> {}
            ),
        )
        .to_string()
    };
    assert_eq!(once(), once());
}
