//! The whole product, as its users run it: the real binary, on every back end, with real receivers.
//!
//! Each scenario is one function over an [`support::Installation`]; the macro below runs it on each back
//! end. Nothing in here reaches into the server: what is known of it comes from its HTTP API, its logs and
//! its exit codes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod support;

/// Runs each scenario of a module on every back end.
macro_rules! on_every_back_end {
    ($($scenario:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::support::Installation::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::support::Installation::postgres().await).await;
            })+
        }
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::support::Installation::mysql().await).await;
            })+
        }
    };
}

/// Runs each scenario of a module on every back end that is a server of its own.
macro_rules! on_every_database_server {
    ($($scenario:ident),+ $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::support::Installation::postgres().await).await;
            })+
        }
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::support::Installation::mysql().await).await;
            })+
        }
    };
}

mod alerts;
mod api_docs;
mod attacks;
mod availability;
mod benchmarks;
mod callbacks;
mod care;
mod care_commands;
mod commands;
mod conformance_table;
mod crashes;
mod dashboard;
mod database_tls;
mod deploy;
mod doctor;
mod documents;
mod endpoint_care;
mod flow;
mod fuzzing;
mod history;
mod large_events;
mod listening;
mod metrics;
mod naming;
mod outbox;
mod outbox_docs;
mod page_commands;
mod pausing;
mod processes;
mod rate_limits;
mod receiver_docs;
mod receiving;
mod redrives;
mod restoring;
mod retention;
mod retries;
mod running_out;
mod sealed;
mod start_up;
mod statuses;
mod tenants;
mod torture;
mod verification;
