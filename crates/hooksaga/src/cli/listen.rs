//! `hooksaga listen`: a receiver for development that prints what arrives.

use crate::{
    config::parse_duration,
    error::{CliError, CliResult},
    output,
    receiver::{self, Arrival, ArrivalKind, Forward, Receiver, ResponsePlan},
    signals,
};
use clap::Args;
use hooksaga_pipeline::SigningSecret;
use http::{StatusCode, Uri};
use std::{net::SocketAddr, time::Duration};
use tokio::net::TcpListener;

const EXAMPLES: &str = "\
Examples:
  hooksaga listen                                          on http://127.0.0.1:9000, any path
  hooksaga listen --secret whsec_…                         checks signatures; wrong ones are answered 401
  hooksaga listen --fail-first 2                           500 twice, then 200: see it retried
  hooksaga listen --status 503                             503 always: see it dead-lettered
  hooksaga listen --forward http://localhost:3000/hook     passes deliveries on to your program
  hooksaga listen --delay 2s --port 0                      answers slowly, on any free port

Verification challenges are always answered.";

/// Receive webhooks for development: echoes challenges, checks signatures, prints what arrives
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Listen {
    /// The port on 127.0.0.1; 0 takes a free one and prints it
    #[arg(long, default_value_t = 9000)]
    port: u16,

    /// Check signatures with this secret; can be repeated
    #[arg(long, value_name = "whsec_…", value_parser = secret)]
    secret: Vec<SigningSecret>,

    /// Let this many deliveries fail first (with --status, else 500), then return 200
    #[arg(long, value_name = "N", default_value_t = 0)]
    fail_first: u64,

    /// Return this status to deliveries; with --fail-first only to the first ones
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<StatusCode>,

    /// Forward deliveries to this address, and return its responses
    #[arg(long, value_name = "URL", value_parser = receiver::target, conflicts_with_all = ["fail_first", "status"])]
    forward: Option<Uri>,

    /// Wait this long before each response, such as 250ms or 2s
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    delay: Duration,
}

impl Listen {
    pub(super) async fn run(self) -> CliResult {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let listener = TcpListener::bind(address).await.map_err(|error| {
            CliError::new(format!(
                "cannot listen on {address}: {error}; choose another with --port, or --port 0"
            ))
        })?;
        let address = listener.local_addr().map_err(|error| CliError::new(error.to_string()))?;
        let behaviour = self.behaviour();
        let (receiver, mut arrivals) = match self.forward {
            Some(to) => Receiver::forwarding(behaviour, self.secret, Forward::new(to)?),
            None => Receiver::new(behaviour, self.secret),
        };
        let stop = signals::first();
        tokio::pin!(stop);
        output::line(format!("listening on http://{address}"));
        let serving = tokio::spawn(receiver.serve(listener));
        let mut count = 0_u64;
        loop {
            tokio::select! {
                Some(arrival) = arrivals.recv() => {
                    count += u64::from(matches!(arrival.kind, ArrivalKind::Delivery { .. }));
                    describe(&arrival, jiff::Timestamp::now()).iter().for_each(output::line);
                }
                () = &mut stop => break,
            }
        }
        serving.abort();
        output::line(format!("{count} {} received", if count == 1 { "delivery" } else { "deliveries" }));
        Ok(())
    }

    fn behaviour(&self) -> ResponsePlan {
        let default =
            ResponsePlan { fail_first: self.fail_first, delay: self.delay, ..ResponsePlan::default() };
        match self.status {
            Some(failure) if self.fail_first > 0 => ResponsePlan { failure, ..default },
            Some(answer) => ResponsePlan { answer, ..default },
            None => default,
        }
    }
}

/// An arrival for people: a line of facts, and the payload below it.
fn describe(arrival: &Arrival, now: jiff::Timestamp) -> Vec<String> {
    let time = now.strftime("%H:%M:%S%.3f");
    let Arrival { webhook_id, verdict, status, body, remark, .. } = arrival;
    let facts = match &arrival.kind {
        ArrivalKind::Verification => {
            format!("{time}  verification  {webhook_id}  {verdict}  -> challenge answered")
        }
        ArrivalKind::Delivery { event_type, attempt } => {
            format!(
                "{time}  {event_type}  {webhook_id}  attempt {attempt}  {verdict}  -> {}{remark}",
                status.as_u16()
            )
        }
        ArrivalKind::Other { method, path } => {
            return vec![format!("{time}  {method} {path}  -> {}", status.as_u16())];
        }
    };
    let mut lines = vec![facts];
    let body = output::clean(&String::from_utf8_lossy(body));
    lines.extend(body.lines().map(|line| format!("    {line}")));
    lines
}

fn secret(text: &str) -> Result<SigningSecret, String> {
    text.parse().map_err(|error: hooksaga_pipeline::InvalidSecret| error.to_string())
}

fn status(text: &str) -> Result<StatusCode, String> {
    let status = text.parse::<u16>().ok().filter(|status| (200..=599).contains(status));
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    status.ok_or_else(|| "a status is a number from 200 to 599".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::SignatureCheck;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        listen: Listen,
    }

    fn behaviour(line: &[&str]) -> ResponsePlan {
        CommandLine::try_parse_from([&["listen"], line].concat()).expect("valid").listen.behaviour()
    }

    #[test]
    fn the_status_is_for_the_failures_when_there_are_some_and_for_all_otherwise() {
        let both = behaviour(&["--fail-first", "2", "--status", "503"]);
        assert_eq!((both.fail_first, both.failure.as_u16(), both.answer.as_u16()), (2, 503, 200));
        assert_eq!(behaviour(&["--status", "503"]).answer.as_u16(), 503);
        assert_eq!(behaviour(&["--fail-first", "2"]).failure.as_u16(), 500);
        assert_eq!(behaviour(&["--delay", "250ms"]).delay, Duration::from_millis(250));
    }

    #[test]
    fn an_arrival_is_a_line_of_facts_and_its_payload() {
        let arrival = Arrival {
            kind: ArrivalKind::Delivery { event_type: "order.created".into(), attempt: "2".into() },
            webhook_id: "evt_17".into(),
            verdict: SignatureCheck::Valid,
            status: StatusCode::OK,
            body: "{\"a\":\u{1b}1}".into(),
            remark: String::new(),
        };
        let lines = describe(&arrival, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(lines[0], "00:00:00.000  order.created  evt_17  attempt 2  signature valid  -> 200");
        assert_eq!(lines[1], "    {\"a\":�1}");
    }
}
