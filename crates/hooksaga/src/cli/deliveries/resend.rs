//! `hooksaga deliveries resend`: sends a delivery that has ended again.

use crate::{
    cli::remote::{ApiRequeued, Remote},
    error::CliResult,
    output,
};

pub(super) async fn run(id: i64, remote: &Remote) -> CliResult {
    let answer = remote.connect()?.post(&format!("/v1/deliveries/{id}/resend"), "").await?;
    let known = answer.status() == 200;
    remote.print(&answer, |ApiRequeued { saga_id, .. }| {
        output::line(if known {
            format!("delivery {id} was sent again before, as delivery {saga_id}")
        } else {
            format!(
                "delivery {id} is sent again as delivery {saga_id}: see `hooksaga deliveries show {saga_id}`"
            )
        });
    })
}
