//! Lists the files of a folder, and measures single files. An unreadable file is a result, not an
//! error.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Folders with generated or downloaded content.
const SKIPPED: [&str; 2] = [".git", "target"];

/// How much of a file is in memory at a time.
const CHUNK: usize = 64 * 1024;

/// The maximum size of one listing in bytes of paths. The output of a step is limited to 1 MB.
const LONGEST_LISTING: usize = 256 * 1024;

/// How many unreadable folders the listing names.
const MOST_PROBLEMS: usize = 100;

/// The longest path that is used unchanged as a step's key. Keys are limited to 256 bytes.
const LONGEST_KEY: usize = 200;

/// The files of a folder, or the first part of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listing {
    /// The paths of its regular files relative to the folder, as text, sorted.
    pub files: Vec<String>,
    /// The folders that could not be read, with the reason.
    pub problems: Vec<String>,
    /// Whether no files follow these.
    pub is_complete: bool,
}

impl Listing {
    /// The path of the last file, or an empty text.
    #[must_use]
    pub fn last(&self) -> &str {
        self.files.last().map_or("", String::as_str)
    }

    /// Appends the next part of the listing.
    pub fn append(&mut self, next: Self) {
        self.files.extend(next.files);
        self.problems = next.problems;
        self.is_complete = next.is_complete;
    }
}

/// The facts about one file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileFacts {
    /// Its path relative to the folder, as text.
    pub file: String,
    /// Its content, or the reason why it could not be read.
    pub content: Result<Content, String>,
}

/// The measured content of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Content {
    /// The size in bytes.
    pub bytes: u64,
    /// The number of line ends.
    pub lines: u64,
    /// The SHA-256 of its bytes, in hexadecimal.
    pub digest: String,
}

/// Lists the regular files in a folder that come after `after`, sorted, as many as fit into one
/// step's output. Does not follow links.
///
/// # Errors
/// If the folder itself cannot be read.
pub async fn list_files(folder: &str, after: &str) -> std::io::Result<Listing> {
    let (root, after) = (path_of(folder), after.to_owned());
    let mut listing = tokio::task::spawn_blocking(move || list_all(&root)).await??;
    listing.files.retain(|file| *file > after);
    let mut n_bytes = 0;
    let mut fits = |file: &String| {
        n_bytes += file.len();
        n_bytes <= LONGEST_LISTING
    };
    let n_fitting = listing.files.iter().map_while(|file| fits(file).then_some(())).count();
    listing.is_complete = n_fitting == listing.files.len();
    listing.files.truncate(n_fitting);
    listing.problems.truncate(MOST_PROBLEMS);
    Ok(listing)
}

/// Measures one file in chunks. An unreadable file is a result too.
///
/// # Errors
/// If the runtime is shutting down.
pub async fn measure_file(folder: &str, file: &str) -> std::io::Result<FileFacts> {
    let path = path_of(folder).join(path_of(file));
    let content = tokio::task::spawn_blocking(move || read(&path)).await?;
    Ok(FileFacts { file: file.to_owned(), content: content.map_err(|error| error.to_string()) })
}
/// Returns the step's key for a file: its path, shortened if it is too long for a key.
#[must_use]
pub fn key_of(file: &str) -> String {
    if file.len() <= LONGEST_KEY {
        return file.to_owned();
    }
    let end = file.floor_char_boundary(LONGEST_KEY);
    format!("{}~{}", &file[..end], &digest_of(file.as_bytes())[..16])
}

/// Encodes a path as text without loss. Bytes that are not UTF-8, control characters, `%` and a
/// trailing space become `%` and two digits.
#[must_use]
pub fn text_of(path: &Path) -> String {
    let mut text = String::new();
    let escape = |text: &mut String, bytes: &[u8]| bytes.iter().for_each(|b| *text += &format!("%{b:02x}"));
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '%' || c.is_control() {
                escape(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(c);
            }
        }
        escape(&mut text, chunk.invalid());
    }
    if text.ends_with(' ') {
        text.truncate(text.len() - 1);
        text += "%20";
    }
    text
}

/// Returns the SHA-256 of bytes, in hexadecimal.
#[must_use]
pub fn digest_of(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn path_of(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

fn list_all(root: &Path) -> std::io::Result<Listing> {
    let mut listing = Listing { files: Vec::new(), problems: Vec::new(), is_complete: true };
    std::fs::read_dir(root)?;
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        if let Err(error) = list_one(root, &folder, &mut open, &mut listing.files) {
            listing.problems.push(format!("{}: {error}", text_of(&folder)));
        }
    }
    listing.files.sort_unstable();
    listing.problems.sort_unstable();
    Ok(listing)
}

fn list_one(
    root: &Path,
    folder: &Path,
    open: &mut Vec<PathBuf>,
    files: &mut Vec<String>,
) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if SKIPPED.map(OsStr::new).contains(&entry.file_name().as_os_str()) {
            continue;
        }
        if kind.is_dir() {
            open.push(entry.path());
        } else if kind.is_file() {
            let path = entry.path();
            files.push(text_of(path.strip_prefix(root).unwrap_or(&path)));
        }
    }
    Ok(())
}

fn read(path: &Path) -> std::io::Result<Content> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let (mut bytes, mut lines) = (0_u64, 0_u64);
    let mut chunk = vec![0; CHUNK];
    loop {
        let n_read = match file.read(&mut chunk) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if n_read == 0 {
            return Ok(Content { bytes, lines, digest: hexadecimal(&digest.finalize()) });
        }
        let read = &chunk[..n_read];
        digest.update(read);
        bytes += n_read as u64;
        lines += read.iter().filter(|byte| **byte == b'\n').count() as u64;
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_round_trips_through_printable_text() {
        for bytes in
            [&b"src/lib.rs"[..], b"100%41.txt", b"caf\xe9", b"line\nfeed", b"  ", "Größe/日本".as_bytes()]
        {
            let path = Path::new(OsStr::from_bytes(bytes));
            let text = text_of(path);
            assert_eq!(path_of(&text), path);
            assert!(!text.chars().any(char::is_control) && !text.trim().is_empty(), "{text:?}");
        }
    }

    #[tokio::test]
    async fn paged_listing_of_large_folder_neither_misses_nor_repeats_files() {
        let folder = std::env::temp_dir().join(format!("runledger-pieces-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let names: Vec<String> = (0..1500).map(|n| format!("{n:0200}")).collect();
        names.iter().for_each(|name| std::fs::write(folder.join(name), "").unwrap());
        let text = text_of(&folder);
        let mut listing = list_files(&text, "").await.unwrap();
        let n_first = listing.files.len();
        while !listing.is_complete {
            listing.append(list_files(&text, listing.last()).await.unwrap());
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(listing.files, names);
        assert_eq!(n_first, LONGEST_LISTING / 200);
    }

    #[test]
    fn keys_of_long_paths_are_short_and_distinct() {
        let (one, other) = ("é".repeat(300), format!("{}x", "é".repeat(300)));
        assert_ne!(key_of(&one), key_of(&other));
        assert!(key_of(&one).len() <= 256);
    }
}
