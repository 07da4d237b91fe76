//! The processes: on a database server two of each kind, on the embedded one a single server.

use super::Setup;
use crate::support::*;
use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

/// Who runs what. Together they are every component.
const SPLIT: [&str; 5] =
    ["api", "router,deadletters", "orchestrator", "worker", "cleaner,verifier,caretaker,janitor"];

pub(super) struct Cast {
    actors: Vec<Actor>,
    addresses: Arc<Mutex<Vec<String>>>,
}

struct Actor {
    /// Its components; all of them if there is no text.
    only: &'static str,
    server: Option<Server>,
    /// Frozen until then.
    frozen: Option<Instant>,
}

impl Actor {
    async fn start(&mut self, setup: &Setup) {
        self.frozen = None;
        let server = match self.only {
            "" => setup.installation.serve().await,
            components => setup.installation.serve_only(components).await,
        };
        self.server = Some(server);
    }

    /// A process that has ended by itself is a bug.
    fn check(&mut self, setup: &Setup) {
        let ended = self.server.as_mut().and_then(Server::has_ended);
        assert!(
            ended.is_none(),
            "{:?} ended by itself ({}) on {}",
            self.only,
            ended.unwrap(),
            setup.installation.folder.path().display()
        );
    }

    async fn kill(&mut self, setup: &Setup) {
        self.check(setup);
        if let Some(server) = self.server.take() {
            server.kill().await;
        }
        self.start(setup).await;
    }

    fn serves_the_api(&self) -> bool {
        self.only.is_empty() || self.only == "api"
    }
}

impl Cast {
    pub(super) async fn start(setup: &Setup) -> Self {
        let kinds: Vec<&'static str> = if setup.has_server() { SPLIT.repeat(2) } else { vec![""] };
        let mut actors = Vec::new();
        for only in kinds {
            let mut actor = Actor { only, server: None, frozen: None };
            actor.start(setup).await;
            actors.push(actor);
        }
        let cast = Self { actors, addresses: Arc::default() };
        cast.publish();
        cast
    }

    /// Where the API is, at any time.
    pub(super) fn addresses(&self) -> Arc<Mutex<Vec<String>>> {
        Arc::clone(&self.addresses)
    }

    pub(super) fn api_addresses(&self) -> Vec<String> {
        self.addresses.lock().unwrap().clone()
    }

    fn publish(&self) {
        let with_api = self.actors.iter().filter(|actor| actor.serves_the_api());
        let addresses = with_api.filter_map(|actor| Some(actor.server.as_ref()?.address().to_owned()));
        *self.addresses.lock().unwrap() = addresses.collect();
    }

    fn pick(&mut self, roll: u64) -> &mut Actor {
        let count = self.actors.len() as u64;
        &mut self.actors[usize::try_from(roll % count).unwrap()]
    }

    /// SIGKILL, and a new process in its place; two at once where there are several. Returns how many.
    pub(super) async fn kill(&mut self, roll: u64, setup: &Setup) -> u32 {
        let count = self.actors.len() as u64;
        let first = usize::try_from(roll % count).unwrap();
        let second = usize::try_from((roll / count) % count).unwrap();
        let killed = if let Ok([first, second]) = self.actors.get_disjoint_mut([first, second]) {
            tokio::join!(first.kill(setup), second.kill(setup));
            2
        } else {
            self.actors[first].kill(setup).await;
            1
        };
        self.publish();
        killed
    }

    /// SIGSTOP, for this long.
    pub(super) async fn freeze(&mut self, roll: u64, lasting: Duration, setup: &Setup) {
        let actor = self.pick(roll);
        actor.check(setup);
        if let Some(server) = &actor.server {
            server.signal("STOP").await;
            actor.frozen = Some(Instant::now() + lasting);
        }
    }

    /// Wakes those that were frozen for long enough, and sees whether everybody is there.
    pub(super) async fn look_after(&mut self, setup: &Setup) {
        let now = Instant::now();
        for actor in &mut self.actors {
            // Before anything is asked of it.
            actor.check(setup);
            if actor.frozen.is_some_and(|until| until <= now) {
                actor.frozen = None;
                if let Some(server) = &actor.server {
                    server.signal("CONT").await;
                }
            }
        }
    }

    /// Wakes everybody.
    pub(super) async fn recover(&mut self, setup: &Setup) {
        for actor in &mut self.actors {
            if actor.frozen.is_some() {
                actor.frozen = Some(Instant::now());
            }
        }
        self.look_after(setup).await;
    }
}
