//! All ways in which an argument may be borrowed, absent or have a default.

use ::runledger::{Result, job};
use ::std::path::{Path, PathBuf};
use ::std::prelude::rust_2024::*;

#[job]
pub async fn reserve(sku: &str, quantity: u32) -> Result<u64, ::std::num::TryFromIntError> {
    Ok(u64::try_from(sku.len())? + u64::from(quantity))
}

#[job]
pub async fn scan(
    names: &[String],
    root: &Path,
    base: &::std::path::Path,
    list: &Vec<u8>,
    maybe: &Option<i32>,
) -> Result<String> {
    let all = names.join(",");
    Ok(::std::format!("{all}{}{}{list:?}{maybe:?}", root.display(), base.display()))
}

#[job]
pub async fn defaults(
    #[default] count: u32,
    #[default = "EUR"] currency: &str,
    #[default = String::from("x")] owned: String,
    #[default = &[1, 2]] list: &[u8],
    #[default = Path::new("/tmp")] root: &Path,
    #[default = Some(4)] maybe: Option<u8>,
    #[default = (1, PathBuf::new())] pair: &(u8, PathBuf),
) -> Result<String> {
    Ok(::std::format!("{count}{currency}{owned}{list:?}{}{maybe:?}{pair:?}", root.display()))
}

#[job]
pub async fn absent(required: u32, maybe: Option<u32>) -> Result<(u32, Option<u32>)> {
    Ok((required, maybe))
}

macro_rules! job_of {
    ($name:ident, $title:literal, $queue:expr, $ty:ty) => {
        #[job(name = $title, queue = $queue)]
        pub async fn $name(value: $ty) -> Result<()> {
            drop(value.to_owned());
            Ok(())
        }
    };
}

job_of!(from_macro, "from-macro", "q", &str);
job_of!(from_macro_too, "from-macro-too", "q", ::std::string::String);
