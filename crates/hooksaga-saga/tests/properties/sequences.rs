//! Many events in a row, in any order, repeated and out of date: what the orchestrator may be handed.

use super::{outcomes, policies, timestamps};
use hooksaga_saga::{
    Applied, ErrorCode, JobResult, Outcome, RetryPolicy, Saga, SagaEvent, SagaStatus, Timestamp,
    apply_result, step,
};
use proptest::{collection::vec, option, prelude::*, sample::Index};

/// One thing that happens. Jobs are named by an index into those that have existed.
#[derive(Clone, Debug)]
enum Happening {
    /// The job that the saga waits for is created.
    Create,
    /// The move to InProgress, for this job: perhaps late.
    Move(Index),
    /// The result of this job: perhaps for the second time. The first decides how the job ended.
    Result(Index, End),
}

/// How a job ended, and when its endpoint wants to be asked again.
type End = (Outcome, Option<Timestamp>);

fn happenings() -> impl Strategy<Value = Vec<(Happening, Timestamp)>> {
    let one = prop_oneof![
        2 => Just(Happening::Create),
        2 => any::<Index>().prop_map(Happening::Move),
        3 => (any::<Index>(), (outcomes(), option::of(timestamps()))).prop_map(|(job, end)| Happening::Result(job, end)),
    ];
    vec((one, timestamps()), 0..60)
}

struct Job {
    attempt_at: Timestamp,
    end: Option<End>,
    applied: u32,
}

/// Plays the sequence; checks, step by step, everything that must hold.
fn play(
    limit: u32,
    policy: &RetryPolicy,
    sequence: Vec<(Happening, Timestamp)>,
) -> Result<(), TestCaseError> {
    let mut saga = Saga::new(limit, Timestamp::from_micros(0));
    let mut jobs: Vec<Job> = Vec::new();
    for (happening, now) in sequence {
        let before = saga.clone();
        match happening {
            Happening::Create => {
                let attempt_at = saga.next_attempt_at;
                let waiting = matches!(saga.status, SagaStatus::Pending | SagaStatus::PendingRetry);
                if waiting
                    && attempt_at < Timestamp::MAX
                    && jobs.iter().all(|job| job.attempt_at != attempt_at)
                {
                    jobs.push(Job { attempt_at, end: None, applied: 0 });
                }
            }
            Happening::Move(index) if !jobs.is_empty() => {
                let attempt_at = jobs[index.index(jobs.len())].attempt_at;
                if let Ok(moved) = step(&saga, &SagaEvent::JobCreated { attempt_at }, policy, now) {
                    prop_assert_eq!(moved.status, SagaStatus::InProgress);
                    saga = moved;
                }
            }
            Happening::Result(index, end) if !jobs.is_empty() => {
                let index = index.index(jobs.len());
                let job = &mut jobs[index];
                let (outcome, retry_at) = job.end.get_or_insert(end).clone();
                let result = JobResult { attempt_at: job.attempt_at, outcome, retry_at };
                let first_time = job.applied == 0;
                match apply_result(&saga, &result, policy, now) {
                    Applied::Changed { saga: next, promoted } => {
                        prop_assert_eq!(promoted, saga.status != SagaStatus::InProgress);
                        job.applied += 1;
                        saga = next;
                    }
                    Applied::Already => prop_assert!(!first_time, "a result was lost"),
                }
                prop_assert_eq!(apply_result(&saga, &result, policy, now), Applied::Already);
            }
            Happening::Move(_) | Happening::Result(..) => {}
        }
        check(&before, &saga, &jobs)?;
    }
    Ok(())
}

fn check(before: &Saga, saga: &Saga, jobs: &[Job]) -> Result<(), TestCaseError> {
    prop_assert!(!before.status.is_final() || before == saga, "a final saga changed");
    prop_assert!(jobs.iter().all(|job| job.applied <= 1), "applied twice");
    let applied = jobs.iter().filter(|job| job.applied > 0);
    prop_assert_eq!(usize::try_from(saga.attempt_count).unwrap(), applied.clone().count());
    prop_assert!(saga.attempt_count <= saga.max_retry_limit);
    prop_assert_eq!(
        saga.status == SagaStatus::Completed,
        applied.clone().any(|job| matches!(job.end, Some((Outcome::Delivered, _))))
    );
    let mut failures = applied.rev().filter_map(|job| match &job.end {
        Some((Outcome::Failed(code), _)) => Some(code),
        _ => None,
    });
    let last_failure = failures.next();
    prop_assert_eq!(saga.final_error_code.as_ref(), last_failure);
    prop_assert!(!failures.any(ErrorCode::is_final), "an attempt after a final failure");
    let given_up =
        saga.attempt_count == saga.max_retry_limit || last_failure.is_some_and(ErrorCode::is_final);
    let dead = given_up && saga.status != SagaStatus::Completed;
    prop_assert_eq!(saga.status == SagaStatus::DeadLettered, dead);
    Ok(())
}

proptest! {
    /// SG-4, SG-5, SG-6, SG-7, SG-8, CA-1, CA-2 over whole lives.
    #[test]
    fn every_life_keeps_the_rules(limit in 1_u32..=6, policy in policies(), sequence in happenings()) {
        play(limit, &policy, sequence)?;
    }
}
