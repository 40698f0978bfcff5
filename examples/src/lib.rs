//! Code that the programs in `examples/` share: files, reports, a progress bar, and crashes on
//! request. Your programs do not need it.

mod arguments;
mod files;
mod help;
mod report;
mod resume;
mod screen;
mod witness;

pub use arguments::{Arguments, USAGE};
pub use files::{Content, FileFacts, Listing, digest_of, key_of, list_files, measure_file, text_of};
pub use help::helped;
pub use report::Report;
pub use resume::{queue_of, resume_or_begin};
pub use screen::Screen;
pub use witness::Witness;
