//! The configurations that operators store for jobs, one per job and version of the configuration
//! format. Workers read them at their start, and again when a heartbeat reports a change.

use std::collections::BTreeMap;
use std::time::SystemTime;

use sqlx::{PgConnection, Row};

use crate::model::payload::Stored;
use crate::model::timestamp::Timestamp;
use crate::store::sql;
use crate::store::write::write;

/// A configuration as it is stored.
#[derive(Debug)]
pub(crate) struct StoredConfig {
    pub(crate) job: String,
    pub(crate) version: u32,
    pub(crate) config: Stored,
    pub(crate) changed_at: SystemTime,
}

/// The stored configurations, by job name and version.
#[derive(Debug, Default)]
pub(crate) struct Configs(BTreeMap<String, BTreeMap<u32, Stored>>);

impl Configs {
    /// Returns the configuration of this version under the first name that has one, and that name.
    pub(crate) fn get<'n>(
        &self,
        mut names: impl Iterator<Item = &'n str>,
        version: u32,
    ) -> Option<(&'n str, &Stored)> {
        if self.0.is_empty() {
            return None;
        }
        names.find_map(|name| Some((name, self.0.get(name)?.get(&version)?)))
    }
}

impl FromIterator<StoredConfig> for Configs {
    fn from_iter<I: IntoIterator<Item = StoredConfig>>(configs: I) -> Self {
        let mut all = Self::default();
        for StoredConfig { job, version, config, .. } in configs {
            all.0.entry(job).or_default().insert(version, config);
        }
        all
    }
}

/// Returns every stored configuration, by job and version.
pub(crate) async fn all(connection: &mut PgConnection) -> Result<Vec<StoredConfig>, sqlx::Error> {
    let rows = sqlx::query(sql::CONFIGS).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(StoredConfig {
                job: row.try_get("job")?,
                version: row.try_get::<i32, _>("version")?.unsigned_abs(),
                config: Stored::read(row.try_get("config")?),
                changed_at: row.try_get::<Timestamp, _>("changed_at")?.into(),
            })
        })
        .collect()
}

/// Stores a configuration. Returns false if the stored text is already equal.
pub(crate) async fn store(
    connection: &mut PgConnection,
    job: &str,
    version: i32,
    config: &Stored,
) -> Result<bool, sqlx::Error> {
    let changed = write(sql::CONFIGURE, |configure| {
        sqlx::query(configure).bind(job).bind(version).bind(config.as_str()).fetch_optional(connection)
    })
    .await?;
    Ok(changed.is_some())
}

/// Deletes a configuration. Returns false if none was stored.
pub(crate) async fn forget(
    connection: &mut PgConnection,
    job: &str,
    version: i32,
) -> Result<bool, sqlx::Error> {
    let gone = write(sql::UNCONFIGURE, |forget| {
        sqlx::query(forget).bind(job).bind(version).fetch_optional(connection)
    })
    .await?;
    Ok(gone.is_some())
}
