//! What the commands that talk to a running server share: where it is, filters, paging, and what it returns.

mod filters;
mod pages;
mod patient_client;
mod query;
mod resources;

pub(super) use filters::{
    CommonListArgs, OfEvents, One, PageArgs, Period, event_id, event_type, id, tenant, visible,
};
pub(super) use pages::{Empty, list};
pub(super) use query::QueryString;
pub(super) use resources::{
    ApiAttempt, ApiDeadLetter, ApiDelivery, ApiDeliveryDetail, ApiEvent, ApiPayload, ApiRedrive,
    ApiRequeueTally, ApiRequeued, ApiRouting, ApiStats, ApiSubscription, ApiUnmatched, EndedCounts,
};

pub(super) use patient_client::PatientClient;

use crate::{
    client::{Client, Reply},
    error::{CliError, CliResult},
    output,
};
use clap::Args;
use hooksaga_saga::ErrorCode;
use std::io::Read;

/// How a person finds out where the server is looked for.
pub(super) const WHERE: &str = "\
The server is found through HOOKSAGA_URL (default http://127.0.0.1:8080), the key through HOOKSAGA_API_KEY or
the file that HOOKSAGA_API_KEY_FILE names (default: hooksaga-data/root.key if it is there).";

/// The server.
#[derive(Args, Debug)]
pub(super) struct ServerArgs {
    /// The server [default: HOOKSAGA_URL, else http://127.0.0.1:8080]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

impl ServerArgs {
    pub(super) fn connect(&self) -> CliResult<Client> {
        Client::from_environment(self.url.clone())
    }
}

/// The server, and the form of the output.
#[derive(Args, Debug)]
pub(super) struct Remote {
    /// Print the server's JSON unchanged, for scripts
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

impl Remote {
    pub(super) fn connect(&self) -> CliResult<Client> {
        self.server.connect()
    }

    /// Prints a successful response: unchanged with `--json`, otherwise as `show` formats it.
    pub(super) fn print<T: serde::de::DeserializeOwned>(
        &self,
        answer: &Reply,
        show: impl FnOnce(T),
    ) -> CliResult {
        let read = answer.json()?;
        if self.json {
            output::line(answer.text().trim_end());
        } else {
            show(read);
        }
        Ok(())
    }
}

/// An argument that is given as it is, as `@FILE` for a file, or as `-` for standard input; `what` it is, for people.
pub(super) fn read_argument(argument: &str, what: &str) -> CliResult<String> {
    let cannot_read = |from: &str, error| CliError::new(format!("cannot read {what} from {from}: {error}"));
    match argument.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|error| cannot_read(path, error)),
        None if argument == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map(|_| text).map_err(|error| cannot_read("standard input", error))
        }
        None => Ok(argument.to_owned()),
    }
}

/// An error code with what it means.
pub(super) fn explain(code: &str) -> String {
    format!("{code}: {}", ErrorCode::from_stored(code.to_owned()).wording().meaning)
}

/// What to do about an error code.
pub(super) fn advice(code: &str) -> &'static str {
    ErrorCode::from_stored(code.to_owned()).wording().advice
}

/// A list of words as a person would read it: `a, b and c`.
pub(super) fn enumerate(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
