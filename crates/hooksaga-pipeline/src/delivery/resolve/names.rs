//! The resolver of one client. Callers that want the same name share one lookup.

use super::{
    Resolve,
    memory::{Memory, Resolution, TimedResolution, Unresolved},
    system::NameServers,
};
use async_trait::async_trait;
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, sleep, timeout},
};

/// A lookup that has no answer after this long gets none: the name has failed.
const DEADLINE: Duration = Duration::from_secs(5);
/// Most lookups are answered sooner; one that is not makes room for the next.
const QUICK: Duration = Duration::from_millis(500);
/// How many lookups are that young at a time. Each has a socket or two per name server.
const AT_ONCE: usize = 128;
/// How many go on longer.
const SLOW_AT_ONCE: usize = 192;
/// How many ask for names whose last lookup was not answered, and none in the last hour: a thousand names that hang, tried again and
/// again, leave the slots above to others.
const SUSPECTS_AT_ONCE: usize = 64;
/// How long a lookup waits for its slot: less than any sensible deadline of an attempt.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How many lookups are under way or wait for a slot.
const MOST_FLIGHTS: usize = 4096;
/// How many names are remembered.
const NAMES_KNOWN: usize = 4096;
/// How many addresses of a name are examined: those beyond are as if they did not exist.
const MOST_ADDRESSES: usize = 64;

/// Looks names up as the system is configured to, with a memory of its own. Clones share it.
#[derive(Clone)]
pub struct NameResolver(Arc<ResolverInner>);

struct ResolverInner {
    servers: NameServers,
    quick_slots: Semaphore,
    slow_slots: Semaphore,
    suspect_slots: Semaphore,
    state: Mutex<State>,
}

struct State {
    known: Memory,
    /// The lookups under way: everybody who wants such a name waits for the same one.
    flights: HashMap<Box<str>, watch::Receiver<Option<Resolution>>>,
}

impl NameResolver {
    /// Asks /etc/hosts and the name servers of /etc/resolv.conf, as they are at the time.
    pub fn of_system() -> Self {
        Self::new(NameServers::of_system())
    }

    /// Asks this name server only.
    pub fn of_server(address: SocketAddr) -> Self {
        Self::new(NameServers::only(address))
    }

    fn new(servers: NameServers) -> Self {
        Self(Arc::new(ResolverInner {
            servers,
            quick_slots: Semaphore::new(AT_ONCE),
            slow_slots: Semaphore::new(SLOW_AT_ONCE),
            suspect_slots: Semaphore::new(SUSPECTS_AT_ONCE),
            state: Mutex::new(State { known: Memory::new(NAMES_KNOWN), flights: HashMap::new() }),
        }))
    }

    /// What is known about the name, or the lookup to wait for, which this starts if there is none.
    fn known_or_flight(&self, host: &str) -> Result<Resolution, watch::Receiver<Option<Resolution>>> {
        let name = host.to_ascii_lowercase().into_boxed_str();
        let mut state = self.0.state();
        if let Some(answer) = state.known.get(&name, Instant::now()) {
            return Ok(answer);
        }
        if let Some(flight) = state.flights.get(&name) {
            return Err(flight.clone());
        }
        if state.flights.len() >= MOST_FLIGHTS {
            return Ok(Err(Unresolved::Busy));
        }
        let (landing, flight) = watch::channel(None);
        state.flights.insert(name.clone(), flight.clone());
        let suspect = state.known.is_suspect(&name, Instant::now());
        // A task of its own: it goes on when the one who asked first gives up.
        tokio::spawn(Flight { parts: Arc::clone(&self.0), name }.fly(suspect, landing));
        Err(flight)
    }
}

#[async_trait]
impl Resolve for NameResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let answer = match self.known_or_flight(host) {
            Ok(answer) => answer,
            Err(mut flight) => {
                let landed = flight.wait_for(Option::is_some).await;
                // It ends without a word only if it panicked, or with the process.
                landed.ok().and_then(|answer| answer.clone()).unwrap_or(Err(Unresolved::Busy))
            }
        };
        Ok(answer?.to_vec())
    }
}

impl ResolverInner {
    /// No step in between leaves it half changed, whatever panicked.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look_up(&self, name: &str, suspect: bool) -> TimedResolution {
        let slots = if suspect { &self.suspect_slots } else { &self.quick_slots };
        let Ok(Ok(slot)) = timeout(LONGEST_WAIT, slots.acquire()).await else {
            return TimedResolution::failure(Unresolved::Busy);
        };
        let mut asking = pin!(timeout(DEADLINE, self.servers.ask(name)));
        let answered = if suspect {
            asking.await
        } else {
            tokio::select! {
                answered = &mut asking => answered,
                () = sleep(QUICK) => {
                    drop(slot);
                    let Ok(_slot) = self.slow_slots.try_acquire() else {
                        return TimedResolution::failure(Unresolved::Busy);
                    };
                    asking.await
                }
            }
        };
        let mut found = answered.unwrap_or_else(|_| TimedResolution::failure(Unresolved::Unanswered));
        if let Ok(addresses) = &mut found.answer
            && addresses.len() > MOST_ADDRESSES
        {
            *addresses = addresses[..MOST_ADDRESSES].into();
        }
        found
    }
}

/// A lookup under way: however it ends, it is not under way any longer.
struct Flight {
    parts: Arc<ResolverInner>,
    name: Box<str>,
}

impl Flight {
    async fn fly(self, suspect: bool, landing: watch::Sender<Option<Resolution>>) {
        let found = self.parts.look_up(&self.name, suspect).await;
        if let Err(cause) = &found.answer {
            tracing::debug!(name = %self.name, ?cause, "a host name did not resolve");
        }
        let answer = found.answer.clone();
        self.parts.state().known.put(self.name.clone(), found, Instant::now());
        drop(self);
        landing.send_replace(Some(answer));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.parts.state().flights.remove(&self.name);
    }
}
