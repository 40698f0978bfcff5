//! A standby that streams from a server, and takes its place.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::cluster::{Cluster, ROLE, run};

/// Whose acknowledgement a commit waits for.
const SYNCHRONOUS: &str = "synchronous_standby_names";

const PATIENCE: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(20);

/// The process that receives what the other server writes.
const RECEIVER: &str = "select pid from pg_stat_activity where backend_type = 'walreceiver'";

impl Cluster {
    /// Makes a standby of this server, and starts it; returns when it streams.
    ///
    /// # Errors
    /// What `pg_basebackup` or the standby said.
    pub async fn standby(&self) -> Result<Self> {
        let mut settings = self.settings().clone();
        // Nobody would follow it yet.
        settings.lines.retain(|(name, _)| name != SYNCHRONOUS);
        let standby = Self::prepare(settings).await?;
        let mut backup = standby.command(&self.settings().programs.path("pg_basebackup")?);
        backup.arg("-h").arg(self.socket()).args(["-p", "5432", "-U", ROLE]);
        backup.args(["-X", "stream", "-c", "fast", "-R", "--no-sync"]).arg("-D").arg(standby.data());
        run(&mut backup, "pg_basebackup").await?;
        standby.write_settings()?;
        standby.start().await?;
        self.wait_for("exists (select from pg_stat_replication where state = 'streaming')").await?;
        Ok(standby)
    }

    /// Lets commits return only when a standby has them, or again when they are on the own disk. Returns when it is so.
    ///
    /// # Errors
    /// When the server refuses, or no standby comes.
    pub async fn wait_for_standby(&mut self, waits: bool) -> Result<()> {
        self.set(SYNCHRONOUS, if waits { "*" } else { "" }).await?;
        if waits {
            self.wait_for("exists (select from pg_stat_replication where sync_state = 'sync')").await?;
        }
        Ok(())
    }

    /// Lets a standby receive nothing any more, without a word to the other server.
    ///
    /// # Errors
    /// When nothing is received anyway.
    pub async fn stop_receiving(&self) -> Result<()> {
        self.signal_one(RECEIVER, Signal::STOP).await.map(drop)
    }

    /// Throws away what a standby that stopped receiving has in its buffers. It recovers, and finds nobody to receive from.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn forget_received(&self) -> Result<()> {
        let pid = self.kill_one(RECEIVER).await?;
        self.wait_for(&format!("not exists (select from pg_stat_activity where pid = {pid})")).await
    }

    /// Makes a standby a server of its own, on the next timeline.
    ///
    /// # Errors
    /// When it does not become one.
    pub async fn promote(&self) -> Result<()> {
        self.ready().await?;
        self.execute("select pg_promote(true, 60)").await?;
        self.wait_for("not pg_is_in_recovery()").await
    }

    async fn wait_for(&self, condition: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            let seen = self.holds(condition).await;
            if seen.as_ref().is_ok_and(|holds| *holds) {
                return Ok(());
            }
            ensure!(began.elapsed() < PATIENCE, "`{condition}` does not become true: {seen:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    async fn holds(&self, condition: &str) -> Result<bool> {
        let mut connection = self.connect().await?;
        let statement = sqlx::AssertSqlSafe(format!("select {condition}"));
        Ok(sqlx::query_scalar(statement).fetch_one(&mut connection).await?)
    }
}

#[cfg(test)]
mod tests {
    use runledger::{App, Db, jobs};
    use runledger_tests::check::jobs::check_canary;

    use super::*;
    use crate::server::Settings;

    #[tokio::test(flavor = "multi_thread")]
    async fn verify_reads_the_runs_of_a_standby() -> Result<()> {
        let server = Cluster::start_new(Settings::new()?).await?;
        server.create_database("fleet").await?;
        check_canary().enqueue(&Db::connect(&server.url("fleet")).await?).await?;
        let standby = server.standby().await?;
        let looking = Db::connect_to_look(&standby.url("fleet")).await?;
        let verification = App::new(looking).with(jobs![check_canary]).verify().await?;
        assert_eq!((verification.n_runs, verification.is_ok()), (1, true));
        Ok(())
    }
}
