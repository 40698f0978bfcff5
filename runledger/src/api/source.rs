//! Chooses the database of a program that names none in its code.

use std::ffi::OsString;

use super::client_error::ClientError;

/// The database that `Db::from_env` connects to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The database at this address.
    Url(String),
    /// The embedded server of the project.
    Embedded,
}

/// Decides whether a build may fall back to the embedded server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Build {
    /// Whether the feature `dev` is on and the platform supports the embedded server.
    pub(crate) has_embedded: bool,
    /// Whether debug assertions are on; a release build has none.
    pub(crate) has_debug_assertions: bool,
}

impl Build {
    /// The build of this program.
    pub(crate) const CURRENT: Self =
        Self { has_embedded: cfg!(all(feature = "dev", unix)), has_debug_assertions: cfg!(debug_assertions) };
}

/// Chooses the database from `url`, the value of `DATABASE_URL`. Without a value, a debug build uses the
/// embedded server. A release build returns an error: cargo enables `dev` for the whole program if any crate
/// asks for it, and production data must not end up in a folder without backups.
pub(crate) fn choose(url: Option<OsString>, build: Build) -> Result<Source, ClientError> {
    match url.filter(|url| !url.is_empty()) {
        Some(url) => url.into_string().map(Source::Url).map_err(|_| {
            let why = "`DATABASE_URL` is not UTF-8; escape other bytes of the password as `%` and two digits";
            ClientError::Address(sqlx::Error::Configuration(why.into()))
        }),
        None if build.has_embedded && build.has_debug_assertions => Ok(Source::Embedded),
        None => Err(ClientError::NoDatabaseUrl),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBUG: Build = Build { has_embedded: true, has_debug_assertions: true };
    const RELEASE: Build = Build { has_embedded: true, has_debug_assertions: false };

    #[test]
    fn release_build_without_url_fails_with_one_sentence() {
        for url in [None, Some(OsString::new())] {
            let error = choose(url, RELEASE).unwrap_err();
            assert!(matches!(error, ClientError::NoDatabaseUrl), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("`DATABASE_URL`") && text.contains("`Db::embedded()`"), "{text}");
            assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
        }
    }

    #[test]
    fn debug_build_without_url_uses_the_embedded_server() {
        assert_eq!(choose(None, DEBUG).unwrap(), Source::Embedded);
    }

    #[test]
    fn build_without_embedded_server_needs_a_url() {
        let build = Build { has_embedded: false, ..DEBUG };
        assert!(matches!(choose(None, build), Err(ClientError::NoDatabaseUrl)));
    }

    #[test]
    fn url_wins_in_every_build() {
        for build in [DEBUG, RELEASE] {
            let chosen = choose(Some("postgres://elsewhere/db".into()), build).unwrap();
            assert_eq!(chosen, Source::Url("postgres://elsewhere/db".to_owned()));
        }
    }

    #[cfg(unix)]
    #[test]
    fn url_that_is_not_utf8_is_refused_in_every_build() {
        use std::os::unix::ffi::OsStringExt;

        for build in [DEBUG, RELEASE] {
            let url = OsString::from_vec(b"postgres://user:\xff@localhost/app".to_vec());
            let error = choose(Some(url), build).unwrap_err();
            let ClientError::Address(source) = error else { panic!("{error:?}") };
            assert!(source.to_string().contains("not UTF-8"), "{source}");
        }
    }
}
