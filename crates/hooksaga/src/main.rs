//! The `hooksaga` binary: command line, configuration, telemetry and wiring around the pipeline.

mod cli;
mod client;
mod config;
mod data_folder;
mod descriptors;
mod error;
mod keyfiles;
mod output;
mod receiver;
mod serve;
mod signals;
mod telemetry;
mod wiring;

use clap::Parser;
use std::{process::ExitCode, time::Duration};

/// What one thread allocates another often frees, which glibc's allocator spends a tenth of the program's time on.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Wrong usage and --help end here, with 2 and 0.
    let cli = cli::Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}")),
    };
    let ended = runtime.block_on(Box::pin(cli.run()));
    // A blocking call that nobody waits for any more, such as a read of stdin, must not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match ended {
        Ok(()) => match output::lost() {
            None => ExitCode::SUCCESS,
            Some(why) => {
                fail(&format!("what it printed is incomplete, since stdout cannot be written: {why}"))
            }
        },
        Err(failure) => fail(&failure.to_string()),
    }
}

fn fail(why: &str) -> ExitCode {
    output::note(format!("hooksaga: {why}"));
    ExitCode::FAILURE
}
