//! Who sent a dead letter again.
//!
//! A single letter has an audit record of its own. One that was sent with many others has none: then it was a redrive that ran
//! at the time and whose filter it matches, or a request for many that ended then. Where that leaves more than one possibility,
//! nobody is named.

use super::Visitor;
use crate::{problem::Problem, state::ApiState};
use hooksaga_saga::{RedriveId, Timestamp};
use hooksaga_store::{
    AuditFilter, DeadLetterFilter, DeadLetterSummary, Delivery, PageRequest, QUERY_LIMIT, Redrive,
    RedriveStatus, RedriveWork, StoreResult, TenantScope,
};
use std::time::Duration;

/// What is recorded for one letter.
const ALONE: [&str; 3] = ["dead_letter.requeue", MANY, "delivery.resend"];
const MANY: &str = "dead_letters.requeue";

/// The newest records and redrives that are looked at.
const LOOKED_AT: PageRequest = PageRequest { limit: 100, before: None };

/// A request for many ends by then, and is recorded.
const MANY_ENDS: Duration = QUERY_LIMIT.saturating_mul(2);

/// The last step of a redrive and what it sends have nearly the same time.
const STEP: Duration = Duration::from_secs(1);

/// Somebody who sent a letter again.
pub(super) struct SentBy {
    pub(super) name: String,
    pub(super) redrive: Option<RedriveId>,
}

/// Who sent this letter, of which `again` is the new delivery; for those who are bound to no tenant.
pub(super) async fn sent_again_by(
    state: &ApiState,
    visitor: &Visitor,
    letter: &DeadLetterSummary,
    again: &Delivery,
) -> Result<Option<SentBy>, Problem> {
    if visitor.tenant().is_some() {
        return Ok(None);
    }
    if let Some(name) = alone(state, letter).await? {
        return Ok(Some(SentBy { name, redrive: None }));
    }
    let redrives = state.reader.redrives(&TenantScope::All, LOOKED_AT).await?.items;
    let mut possible: Vec<_> = redrives
        .into_iter()
        .filter(|redrive| may_have_sent(redrive, letter, again.created_at))
        .map(|redrive| SentBy { name: redrive.started_by.name, redrive: Some(redrive.id) })
        .collect();
    possible.extend(with_many(state, letter, again.created_at).await?);
    // The command line sends as many requests as it takes.
    possible
        .dedup_by(|one, before| one.redrive.is_none() && before.redrive.is_none() && one.name == before.name);
    Ok(possible.pop().filter(|_| possible.is_empty()))
}

/// By the letter's own record, or that of its delivery.
async fn alone(state: &ApiState, letter: &DeadLetterSummary) -> StoreResult<Option<String>> {
    for target in [format!("dead-letters/{}", letter.id), format!("deliveries/{}", letter.saga_id)] {
        let filter = AuditFilter { target: Some(target), ..AuditFilter::default() };
        let records = state.reader.audit(LOOKED_AT.of(&TenantScope::All, &filter)).await?.items;
        // Who asks again changes nothing: the first did it.
        let first = records.into_iter().rfind(|record| ALONE.contains(&record.action.as_str()));
        if let Some(record) = first {
            return Ok(Some(record.key_name));
        }
    }
    Ok(None)
}

/// By requests for many that ended soon after.
async fn with_many(
    state: &ApiState,
    letter: &DeadLetterSummary,
    at: Timestamp,
) -> StoreResult<impl Iterator<Item = SentBy>> {
    let filter = AuditFilter {
        action: Some(MANY.parse().expect("visible ASCII")),
        target: Some("dead-letters".to_owned()),
        created_after: Some(at),
        created_before: Some(at.after(MANY_ENDS)),
    };
    let records = state.reader.audit(LOOKED_AT.of(&TenantScope::All, &filter)).await?.items;
    let own = letter.tenant.clone();
    let records =
        records.into_iter().filter(move |record| record.tenant.as_ref().is_none_or(|it| *it == own));
    Ok(records.map(|record| SentBy { name: record.key_name, redrive: None }))
}

/// Whether this redrive ran at that time, and the letter is one of those that it sends.
fn may_have_sent(redrive: &Redrive, letter: &DeadLetterSummary, at: Timestamp) -> bool {
    let RedriveWork::DeadLetters(filter) = &redrive.work else { return false };
    let ran = redrive.status == RedriveStatus::Running || at <= redrive.updated_at.after(STEP);
    ran && redrive.created_at <= at && matches(redrive.tenant.as_deref(), filter, letter)
}

fn matches(tenant: Option<&str>, filter: &DeadLetterFilter, letter: &DeadLetterSummary) -> bool {
    let scope = match tenant.map(str::parse) {
        Some(Ok(tenant)) => TenantScope::One(tenant),
        _ => TenantScope::All,
    };
    scope.includes(&letter.tenant)
        && scope.matches_code(filter.final_error_code.as_ref(), &letter.final_error_code)
        && filter.subscription_id.is_none_or(|id| id == letter.subscription_id)
        && filter.event_type.as_ref().is_none_or(|it| it.as_str() == letter.event_type)
        && filter.created_after.is_none_or(|at| at <= letter.created_at)
        && filter.created_before.is_none_or(|at| at > letter.created_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
    use hooksaga_store::Starter;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    fn letter() -> DeadLetterSummary {
        DeadLetterSummary {
            id: DeadLetterId(1),
            tenant: "acme".to_owned(),
            saga_id: SagaId(1),
            event_id: EventId(1),
            event_type: "t".to_owned(),
            subscription_id: SubscriptionId(3),
            final_error_code: ErrorCode::http(503),
            created_at: at(10),
            requeued_saga_id: Some(SagaId(2)),
        }
    }

    fn redrive(filter: DeadLetterFilter) -> Redrive {
        Redrive {
            id: RedriveId(1),
            tenant: None,
            work: RedriveWork::DeadLetters(filter),
            status: RedriveStatus::Done,
            error: None,
            examined: 1,
            created: 1,
            skipped: 0,
            reached: None,
            started_by: Starter { key_id: None, name: "root".to_owned() },
            created_at: at(20),
            updated_at: at(30),
        }
    }

    #[test]
    fn a_redrive_sent_what_it_matches_while_it_ran() {
        let all = redrive(DeadLetterFilter::default());
        for (second, sent) in [(19, false), (20, true), (30, true), (32, false)] {
            assert_eq!(may_have_sent(&all, &letter(), at(second)), sent, "{second}");
        }
        let running = Redrive { status: RedriveStatus::Running, ..all.clone() };
        assert!(may_have_sent(&running, &letter(), at(99)), "its next step may be hours later");
        let (own, other) = (Some("acme".to_owned()), Some("rival".to_owned()));
        assert!(may_have_sent(&Redrive { tenant: own, ..all.clone() }, &letter(), at(25)));
        assert!(!may_have_sent(&Redrive { tenant: other, ..all }, &letter(), at(25)));
    }

    #[test]
    fn every_part_of_a_filter_counts() {
        let none = DeadLetterFilter::default;
        for (filter, sent) in [
            (DeadLetterFilter { subscription_id: Some(SubscriptionId(3)), ..none() }, true),
            (DeadLetterFilter { subscription_id: Some(SubscriptionId(4)), ..none() }, false),
            (DeadLetterFilter { event_type: Some("t".parse().unwrap()), ..none() }, true),
            (DeadLetterFilter { event_type: Some("u".parse().unwrap()), ..none() }, false),
            (DeadLetterFilter { final_error_code: Some(ErrorCode::http(503)), ..none() }, true),
            (DeadLetterFilter { final_error_code: Some(ErrorCode::http(500)), ..none() }, false),
            (DeadLetterFilter { created_after: Some(at(10)), ..none() }, true),
            (DeadLetterFilter { created_after: Some(at(11)), ..none() }, false),
            (DeadLetterFilter { created_before: Some(at(11)), ..none() }, true),
            (DeadLetterFilter { created_before: Some(at(10)), ..none() }, false),
        ] {
            assert_eq!(may_have_sent(&redrive(filter.clone()), &letter(), at(25)), sent, "{filter:?}");
        }
        let since = at(1);
        let work = RedriveWork::Events { subscription_id: SubscriptionId(3), since, until: None };
        assert!(!may_have_sent(&Redrive { work, ..redrive(none()) }, &letter(), at(25)), "events only");
    }
}
