//! A fleet on a server of the scenario's own, behind an address that outlives the server.

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

/// How long a fleet may take to work again after a fault of its server: far beyond what it promises.
const AGAIN: Duration = Duration::from_secs(60);

/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(50);

/// A server, its address, and the fleet.
#[derive(Debug)]
pub struct Stage {
    /// The server that the address leads to.
    pub cluster: Cluster,
    /// The address of workers, client and checkers.
    pub proxy: Proxy,
    /// The fleet's database, and what is known of it.
    pub site: Site,
    /// The workers.
    pub workers: Vec<Process>,
    client: Client,
    db: Db,
}

impl Stage {
    /// Makes the server, and starts so many workers, with options of theirs, and a client.
    ///
    /// # Errors
    /// [`Missing`](runledger_tests::tools::Missing) where the machine lacks something; when the server refuses.
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

    /// Puts another server in the place of this one, which is given back and reached by nobody any more.
    ///
    /// # Errors
    /// When its address is none.
    pub fn succeed(&mut self, next: Cluster) -> Result<Cluster> {
        self.proxy.lead_to(&next.url(DATABASE))?;
        self.proxy.cut();
        Ok(std::mem::replace(&mut self.cluster, next))
    }

    /// Waits until a run that is enqueued now has ended.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn works(&mut self) -> Result<()> {
        // Until the server is there, and its client has noticed. With a key, since what is not acknowledged may have been carried out.
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

    /// How many workers were declared dead.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn n_buried(&self) -> Result<i64> {
        let mut connection = self.site.connect().await?;
        let dead = "select count(*) from runledger.worker where state = 'dead' and died_why <> 'stopped'";
        Ok(sqlx::query_scalar(dead).fetch_one(&mut connection).await?)
    }

    /// Waits until a worker is declared dead.
    ///
    /// # Errors
    /// When it is not, or the database does not answer.
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

    /// Says that living workers were declared dead, if any was: silence during a fault of the server proves nothing.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn expect_nobody_buried(&mut self) -> Result<()> {
        let n_buried = self.n_buried().await?;
        if n_buried > 0 {
            self.site.violations.push(format!("{n_buried} living workers were declared dead"));
        }
        Ok(())
    }

    /// The end of the scenario.
    ///
    /// # Errors
    /// When the database does not answer.
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
