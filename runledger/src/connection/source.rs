//! Chooses the database of a program whose code names none, and parses addresses.

use std::borrow::Cow;
use std::ffi::OsString;

use sqlx::postgres::PgConnectOptions;

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

/// Chooses the database from `url`, the value of `DATABASE_URL`. Without a value, a debug build
/// uses the embedded server. A release build returns an error: cargo enables `dev` for the whole
/// program if any crate asks for it, and production data must not end up in a folder without
/// backups.
pub(crate) fn choose(url: Option<OsString>, build: Build) -> Result<Source, ClientError> {
    match url.filter(|url| !url.is_empty()) {
        Some(url) => text("DATABASE_URL", url).map(Source::Url),
        None if build.has_embedded && build.has_debug_assertions => Ok(Source::Embedded),
        None => Err(ClientError::NoDatabaseUrl),
    }
}

/// The address in the environment variable `name`.
pub(crate) fn text(name: &str, url: OsString) -> Result<String, ClientError> {
    url.into_string().map_err(|_| {
        let why = format!("`{name}` is not UTF-8; escape other bytes of the password as `%` and two digits");
        ClientError::Address(sqlx::Error::Configuration(why.into()))
    })
}

/// A host as written in an address: an IPv6 address has brackets.
pub(crate) fn shown_host(host: &str) -> Cow<'_, str> {
    if host.contains(':') { format!("[{host}]").into() } else { host.into() }
}

/// The settings of an address whose values may contain an `@`.
const WITH_TEXTS: [&str; 13] = [
    "user",
    "password",
    "dbname",
    "host",
    "application_name",
    "options",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
];

/// Parses an address.
///
/// # Errors
/// [`ClientError::Address`]. An `@` after the host belongs to a password with an unescaped `/`, `?`
/// or `#`. The driver would take parts of that password for a port and a database, and errors would
/// show them.
pub(crate) fn parsed(url: &str) -> Result<PgConnectOptions, ClientError> {
    let url = url.trim();
    let is_ours =
        |scheme: &str| ["postgres", "postgresql"].iter().any(|ours| ours.eq_ignore_ascii_case(scheme));
    let Some((_, behind_scheme)) = url.split_once("://").filter(|(scheme, _)| is_ours(scheme)) else {
        // The driver accepts any scheme. The error omits this one: it may be part of a password.
        let why = match url {
            "" => "it is empty",
            _ => "it begins with another scheme than `postgres://` or `postgresql://`",
        };
        return Err(ClientError::Address(sqlx::Error::Configuration(why.into())));
    };
    if url.contains('\0') || url.contains("%00") {
        let why = "it contains a NUL, which no name and no password of PostgreSQL has";
        return Err(ClientError::Address(sqlx::Error::Configuration(why.into())));
    }
    let behind_host = behind_scheme.find(['/', '?', '#']).map_or("", |end| &behind_scheme[end..]);
    let (path, settings) = behind_host.split_once('?').unwrap_or((behind_host, ""));
    let is_misplaced = |setting: &str| {
        let name = setting.split_once('=').map_or(setting, |(name, _)| name);
        setting.contains('@') && !WITH_TEXTS.contains(&name) && !name.starts_with("options[")
    };
    if path.contains('@') || settings.split('&').any(is_misplaced) {
        let why = "an `@` comes behind the host, so the password, or the name of the database, has a sign that is not escaped";
        return Err(ClientError::Address(sqlx::Error::Configuration(why.into())));
    }
    let options: PgConnectOptions = url.parse().map_err(ClientError::Address)?;
    let host = options.get_host().to_owned();
    // The driver keeps the brackets of `[::1]`, and would resolve them as part of a host name.
    Ok(match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(ipv6) => options.host(ipv6),
        None => options,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_address_is_read_without_brackets() {
        let options = parsed("postgres://me@[::1]:5433/app").unwrap();
        assert_eq!((options.get_host(), options.get_port()), ("::1", 5433));
    }

    #[test]
    fn address_is_trimmed_and_nul_is_refused() {
        assert_eq!(parsed(" postgres://me@db/app\n").unwrap().get_database(), Some("app"));
        for nul in ["%00", "\0"] {
            let refused = parsed(&format!("postgres://me@db/app{nul}application_name")).unwrap_err();
            assert!(matches!(refused, ClientError::Address(_)), "{refused:?}");
        }
    }

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
    fn debug_build_without_url_uses_embedded_server() {
        assert_eq!(choose(None, DEBUG).unwrap(), Source::Embedded);
    }

    #[test]
    fn build_without_embedded_server_needs_url() {
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
    fn non_utf8_url_is_refused_in_every_build() {
        use std::os::unix::ffi::OsStringExt;

        for build in [DEBUG, RELEASE] {
            let url = OsString::from_vec(b"postgres://user:\xff@localhost/app".to_vec());
            let error = choose(Some(url), build).unwrap_err();
            let ClientError::Address(source) = error else { panic!("{error:?}") };
            assert!(source.to_string().contains("not UTF-8"), "{source}");
        }
    }
}
