#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::*;

#[test]
fn lock_files_with_non_utf8_data_path_are_read() {
    let folder = std::env::temp_dir().join(format!("runledger-probe-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let [own, of_socket] = lock_files(&folder, &folder);
    let pid = std::process::id().to_string();
    let text = [pid.as_bytes(), b"\n/data-\xff\n1700000000\n5432\n/tmp\n\n 1 2\nready   \n"].concat();
    fs::write(&own, &text).unwrap();
    fs::write(&of_socket, &text).unwrap();
    let found = (status(&folder), listener(&folder), holder(&own));
    fs::remove_dir_all(&folder).unwrap();

    assert_eq!(found.0.as_deref(), Some("ready"));
    assert_eq!(found.1, Some(rustix::process::getpid()));
    let holder = found.2.unwrap();
    assert_eq!((holder.pid.to_string(), holder.data.as_os_str()), (pid, OsStr::from_bytes(b"/data-\xff")));
}
