//! One delivery in words.

use super::target;
use crate::{
    cli::remote::{ApiAttempt, ApiDelivery, ApiDeliveryDetail, Remote, advice},
    error::CliResult,
    output::{self, Cell, Now, Table},
};

pub(super) async fn run(id: i64, remote: &Remote) -> CliResult {
    let answer = remote.connect()?.get(&format!("/v1/deliveries/{id}")).await?;
    remote.print(&answer, |detail: ApiDeliveryDetail| {
        let now = Now::local();
        let delivery = &detail.delivery;
        let mut facts = vec![
            ("delivery", delivery.saga_id.into()),
            ("tenant", (&delivery.tenant).into()),
            ("event", format!("{} ({})", delivery.event_id, delivery.event_type).into()),
            ("to", target(delivery).into()),
            ("status", Cell::status(&delivery.status)),
            ("attempts", format!("{} of {}", delivery.attempt_count, delivery.max_retry_limit).into()),
            ("created", now.both(&delivery.created_at).into()),
            ("updated", now.both(&delivery.updated_at).into()),
        ];
        if delivery.generation > 0 {
            facts.push(("requeued", output::count(delivery.generation.into(), "time").into()));
        }
        output::facts(facts).iter().for_each(output::line);
        output::line(format!("\n{}", output::clean(&detail.explanation)));
        if let Some(advice) = what_to_do(delivery) {
            output::line(format!("What to do: {advice}."));
        }
        print_attempts(&detail, now);
    })
}

/// Of one that is held, the last failure matters less than why it is held, which its subscription knows.
fn what_to_do(delivery: &ApiDelivery) -> Option<String> {
    if delivery.held {
        return Some(format!("see `hooksaga subscriptions show {}`", delivery.subscription_id));
    }
    let code = delivery.final_error_code.as_deref().filter(|_| delivery.status != "Completed")?;
    Some(advice(code).to_owned())
}

fn print_attempts(detail: &ApiDeliveryDetail, now: Now) {
    let attempts: &[ApiAttempt] = &detail.attempts;
    if attempts.is_empty() {
        return;
    }
    output::line("\nAttempts");
    let mut table = Table::new(&["JOB", "DUE", "STARTED", "STATUS", "RESPONSE", "ERROR", "TOOK", "WENT TO"]);
    for attempt in attempts {
        table.row(vec![
            attempt.job_id.into(),
            now.relative(&attempt.attempt_at).into(),
            Cell::optional(attempt.started_at.as_deref().map(|at| now.both(at))),
            Cell::status(&attempt.status),
            Cell::optional(attempt.response_status.map(|status| status.to_string())),
            Cell::optional(attempt.error_code.as_ref()),
            Cell::optional(attempt.duration_ms.map(|millis| format!("{millis} ms"))),
            Cell::optional(attempt.callback_url.as_ref()),
        ]);
    }
    table.print();
    // The last excerpt is usually like those before.
    let mut excerpts = attempts.iter().filter_map(|attempt| attempt.response_excerpt.as_deref());
    if let Some(excerpt) = excerpts.rfind(|excerpt| !excerpt.is_empty()) {
        output::line("\nThe endpoint's last failed response began with");
        output::clean(excerpt).lines().for_each(|line| output::line(format!("    {line}")));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::delivery, *};

    #[test]
    fn one_that_is_held_is_not_advised_as_if_it_had_been_given_up() {
        let failed =
            |status| ApiDelivery { final_error_code: Some("HTTP_500".to_owned()), ..delivery(21, status, 1) };
        let given_up = what_to_do(&failed("DeadLettered")).unwrap();
        assert!(given_up.contains("send the dead letters again"), "{given_up}");
        let held = ApiDelivery { held: true, ..failed("PendingRetry") };
        let expected = format!("see `hooksaga subscriptions show {}`", held.subscription_id);
        assert_eq!(what_to_do(&held), Some(expected));
        assert_eq!(what_to_do(&failed("Completed")), None);
        assert_eq!(what_to_do(&delivery(21, "Pending", 0)), None);
    }
}
