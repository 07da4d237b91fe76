//! A good endpoint is verified soon, however many others hang.

use super::Scenarios;
use crate::{
    error::{BenchError, BenchResult},
    report::Bar,
};
use std::{
    net::{Ipv4Addr, TcpListener},
    time::{Duration, Instant},
};

const HANGING: u16 = 500;
/// Good ones, one after the other: while the flood is new, and when its first challenges have timed out.
const GOOD: usize = 5;
const APART: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_secs(60);

impl Scenarios<'_> {
    pub(super) async fn verification(&mut self) -> BenchResult {
        let setup = self.setup("verification", &[]).await?;
        let hosts = silent_hosts()?;
        let urls = hosts
            .iter()
            .enumerate()
            .map(|(number, (_, url))| (setup.event_type(&format!("n{number}")), url.clone()));
        setup.server.request_all(urls).await?;
        let mut longest = Duration::ZERO;
        for number in 0..GOOD {
            let good = (setup.event_type(&format!("good{number}")), setup.others.url("/ok/0"));
            let asked = Instant::now();
            let ids = setup.server.request_all(std::iter::once(good)).await?;
            for id in ids {
                while !setup.server.is_verified(id).await? {
                    if asked.elapsed() > PATIENCE {
                        return Err(BenchError::new("a good endpoint was not verified beside hanging ones"));
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            longest = longest.max(asked.elapsed());
            tokio::time::sleep(APART).await;
        }
        setup.end().await?;
        drop(hosts);
        let name = format!("verified beside {HANGING} that hang, longest of {GOOD}");
        self.report.add(name, longest.as_secs_f64() * 1e3, "ms", Some(Bar::AtMost(2000.0)));
        Ok(())
    }
}

/// Hosts that let a client connect and never say anything: ports that nobody accepts connections from.
fn silent_hosts() -> BenchResult<Vec<(TcpListener, String)>> {
    let open = |number| {
        let listener = TcpListener::bind((address(number), 0))?;
        let url = format!("http://{}/hang", listener.local_addr()?);
        Ok((listener, url))
    };
    let opened: std::io::Result<Vec<_>> = (0..HANGING).map(open).collect();
    opened.map_err(|error| BenchError::new(format!("cannot open {HANGING} receivers: {error}")))
}

/// An address of its own on loopback for each: the ports of one host share what it is sent, so on one address only the
/// first few would ever be challenged. None of them is the good endpoint's.
fn address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_silent_host_has_an_address_of_its_own() {
        let addresses: HashSet<Ipv4Addr> = (0..HANGING).map(address).collect();
        assert_eq!(addresses.len(), usize::from(HANGING));
        assert!(addresses.iter().all(Ipv4Addr::is_loopback) && !addresses.contains(&Ipv4Addr::LOCALHOST));
    }
}
