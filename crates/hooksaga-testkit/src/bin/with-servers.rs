//! `with-servers COMMAND…`: runs a command beside private database servers, then stops them.
//!
//! One set of servers serves a whole run of the tests; the command finds them in its environment.

use hooksaga_testkit::{
    mariadb::{self, MariaDbServer},
    postgres::{self, PostgresServer},
};
use std::{
    env,
    process::{Command, ExitCode},
};

#[expect(clippy::print_stderr, reason = "a command line program")]
fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: with-servers COMMAND [ARGUMENT…]");
        return ExitCode::from(2);
    };
    // One after the other, on this thread: the servers end with the thread that started them.
    let mut postgres = PostgresServer::start();
    let mut mariadb = MariaDbServer::start();
    let status = Command::new(&program)
        .args(arguments)
        .env(postgres::URL_VARIABLE, postgres.url())
        .env(mariadb::URL_VARIABLE, mariadb.url())
        .status();
    // Then most tests have failed, and only its log says why.
    for (name, has_ended, log) in [
        ("PostgreSQL", postgres.has_ended(), postgres.log()),
        ("MariaDB", mariadb.has_ended(), mariadb.log()),
    ] {
        if has_ended {
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(100)..].join("\n");
            eprintln!("== {name} ended by itself. The end of its log:\n{last}");
        }
    }
    match status {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => {
            eprintln!("cannot run {}: {error}", program.display());
            ExitCode::from(1)
        }
    }
}
