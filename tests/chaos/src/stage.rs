//! A fleet on the scenario's own server, behind an address that outlives the server.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use runledger::Db;
use runledger_tests::check::calls::Submission;
use runledger_tests::check::fleet::Process;
use runledger_tests::check::jobs;
use runledger_tests::proxy::Proxy;
use uuid::Uuid;

use crate::load::Client;
use crate::scenario::Setting;
use crate::server::{Cluster, Settings};
use crate::site::Site;
use crate::summary::Summary;

/// The database of the fleet.
pub const DATABASE: &str = "fleet";

/// How long a fleet may take to work again after a server fault: far longer than it promises.
const AGAIN: Duration = Duration::from_secs(60);

/// The pause between two checks of a wait.
const POLL: Duration = Duration::from_millis(50);

/// A server, its address, and the fleet.
#[derive(Debug)]
pub struct Stage {
    /// The server behind the address.
    pub cluster: Cluster,
    /// The address for workers, client and checkers.
    pub proxy: Proxy,
    /// The site of the fleet's database.
    pub site: Site,
    /// The workers.
    pub workers: Vec<Process>,
    client: Client,
    db: Db,
}

impl Stage {
    /// Creates the server, and starts workers with these options and a client.
    ///
    /// # Errors
    /// [`Missing`](runledger_tests::tools::Missing) without the needed programs, or the server
    /// refused.
    pub async fn start(
        setting: &Setting,
        settings: Settings,
        workers: usize,
        options: &[&str],
    ) -> Result<Self> {
        let cluster = Cluster::start_new(settings).await?;
        cluster.create_database(DATABASE).await?;
        let proxy = Proxy::start(&cluster.url(DATABASE)).await?;
        let mut site = Site::on(setting, proxy.url()).await?;
        let mut started = Vec::new();
        for _ in 0..workers {
            started.push(site.worker_at(proxy.url(), options).await?);
        }
        let client = site.client(setting).await?;
        let db = Db::connect(proxy.url()).await?;
        Ok(Self { cluster, proxy, site, workers: started, client, db })
    }

    /// Replaces the server with another one. Returns the old server, which is now unreachable.
    ///
    /// # Errors
    /// The address of the new server is invalid.
    pub fn succeed(&mut self, next: Cluster) -> Result<Cluster> {
        self.proxy.lead_to(&next.url(DATABASE))?;
        self.proxy.cut();
        Ok(std::mem::replace(&mut self.cluster, next))
    }

    /// Waits until a run that is enqueued now has completed.
    ///
    /// # Errors
    /// The run did not complete.
    pub async fn works(&mut self) -> Result<()> {
        // Retries until the server is up and the client has noticed. The key makes retries safe,
        // because an unacknowledged call may have succeeded.
        let key = Uuid::now_v7().to_string();
        let again = async {
            loop {
                match jobs::check_canary().idempotency_key(&key).enqueue(&self.db).await {
                    Ok(canary) => {
                        self.site.asked.push(Submission::acknowledged(canary.id()));
                        return canary.result().await;
                    }
                    Err(_) => tokio::time::sleep(POLL).await,
                }
            }
        };
        match tokio::time::timeout(AGAIN, again).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(anyhow::Error::from(error).context("a canary after the fault")),
            Err(_) => bail!("a canary after the fault has not ended after {AGAIN:?}"),
        }
    }

    /// Returns how many workers were marked dead.
    ///
    /// # Errors
    /// The database did not answer.
    pub async fn n_buried(&self) -> Result<i64> {
        let mut connection = self.site.connect().await?;
        let dead = "select count(*) from runledger.worker where state = 'dead' and died_why <> 'stopped'";
        Ok(sqlx::query_scalar(dead).fetch_one(&mut connection).await?)
    }

    /// Waits until a worker is marked dead.
    ///
    /// # Errors
    /// The worker was not marked dead, or the database did not answer.
    pub async fn buried(&self, worker_id: i64) -> Result<()> {
        let began = std::time::Instant::now();
        let mut connection = self.site.connect().await?;
        let dead = "select state = 'dead' from runledger.worker where worker_id = $1";
        while !sqlx::query_scalar::<_, bool>(dead).bind(worker_id).fetch_one(&mut connection).await? {
            ensure!(
                began.elapsed() < AGAIN,
                "worker {worker_id} was killed, and is not dead after {AGAIN:?}"
            );
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Adds a violation if a live worker was marked dead: silence during a server fault proves
    /// nothing.
    ///
    /// # Errors
    /// The database did not answer.
    pub async fn expect_nobody_buried(&mut self) -> Result<()> {
        let n_buried = self.n_buried().await?;
        if n_buried > 0 {
            self.site.violations.push(format!("{n_buried} living workers were declared dead"));
        }
        Ok(())
    }

    /// Ends the scenario and judges it.
    ///
    /// # Errors
    /// The database did not answer.
    pub async fn judge(self) -> Result<Summary> {
        let Self { cluster, proxy, mut site, mut workers, client, db } = self;
        for worker in &mut workers {
            if worker.has_ended() {
                site.violations.push(format!("worker process {} has ended by itself", worker.pid));
            }
        }
        let judged = site.judge(client).await;
        drop((db, workers, proxy, cluster));
        judged
    }
}
