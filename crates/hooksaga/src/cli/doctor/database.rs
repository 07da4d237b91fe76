//! The database, as it is found from here.

use super::{
    finding::{Finding, Verdict},
    signing_key,
};
use crate::{
    config::{BackendUrl, Config},
    output, wiring,
};
use hooksaga_store::{
    ClockReading, Examination, Fault, LivingWorker, QueueGauges, RoleFault, RolesFound, SchemaVersion,
    StoreError, StoreResult,
};
use jiff::Timestamp;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// How long one question may take: longer than the drivers' own limits for a server that is silent.
const PATIENCE: Duration = Duration::from_secs(25);
/// How long all questions together may take: the whole command ends within a minute.
const TOGETHER: Duration = Duration::from_secs(50);

/// Receivers refuse signatures that are more than five minutes off (Standard Webhooks).
const REFUSED: Duration = Duration::from_secs(300);
/// What synchronised clocks never differ by.
const APART: Duration = Duration::from_secs(2);

/// Deliveries that could run wait no longer than this on a server that keeps up.
const LATE: Duration = Duration::from_secs(60);

/// What was found, and the workers that are alive.
pub(super) async fn database(config: &Config) -> (Vec<Finding>, Vec<LivingWorker>) {
    const CHECK: &str = "database";
    let deadline = Instant::now() + TOGETHER;
    let examination = match in_time(deadline, wiring::examine(&config.database)).await {
        Ok(examination) => examination,
        Err(error) => {
            return (vec![Finding::from_error(CHECK, Verdict::Problem, &error)], Vec::new());
        }
    };
    let Examination { server, clock, schema, roles, hazards } = examination;
    let mut findings = vec![Finding::ok(CHECK, format!("{server} can be reached"))];
    findings.extend(hazards.iter().map(|line| Finding::from_line(CHECK, Verdict::Warning, line)));
    findings.push(judge_schema(config, &schema));
    findings.extend(judge_roles(&roles));
    findings.push(judge_clock(clock));
    let mut workers = Vec::new();
    if schema.is_ok() {
        findings.push(signing_key::judge(config, deadline).await);
        let (work, living) = work(config, deadline).await;
        findings.extend(work);
        workers = living;
    }
    (findings, workers)
}

/// Waits for one question, and no longer than until the deadline of all.
pub(super) async fn in_time<T>(
    deadline: Instant,
    question: impl Future<Output = StoreResult<T>>,
) -> StoreResult<T> {
    let own = Instant::now() + PATIENCE;
    tokio::time::timeout_at(own.min(deadline), question).await.unwrap_or_else(|_| {
        Err(StoreError::Unavailable(if own <= deadline {
            format!("it did not respond within {} s", PATIENCE.as_secs())
        } else {
            format!("it did not respond within the {} s allowed for all checks", TOGETHER.as_secs())
        }))
    })
}

fn judge_schema(config: &Config, schema: &StoreResult<SchemaVersion>) -> Finding {
    const CHECK: &str = "schema";
    match schema {
        Ok(SchemaVersion { version, newest_known }) if version > newest_known => Finding::warning(
            CHECK,
            format!("version {version}; this program knows {newest_known} but is compatible"),
            "replace this program by the version that migrated the database",
        ),
        Ok(SchemaVersion { version, .. }) => Finding::ok(CHECK, format!("version {version}, this program's")),
        // The first start makes it.
        Err(StoreError::Schema(text))
            if matches!(config.database.backend, BackendUrl::Sqlite(_))
                && text.contains("no hooksaga schema yet") =>
        {
            Finding::ok(CHECK, "none yet: the first `hooksaga serve` makes it")
        }
        Err(error) => Finding::from_error(CHECK, Verdict::Problem, error),
    }
}

fn judge_roles(roles: &RolesFound) -> Vec<Finding> {
    const CHECK: &str = "roles";
    let (tried, faults, weakness) = match roles {
        RolesFound::Embedded => return vec![Finding::ok(CHECK, "embedded: enforced by the program itself")],
        RolesFound::NotLookedAt => return Vec::new(),
        RolesFound::Off => {
            return vec![Finding::warning(
                CHECK,
                "database.roles is off: the database does not keep components apart",
                "where roles can be created, remove database.roles and run `hooksaga migrate`",
            )];
        }
        RolesFound::Checked { tried, faults, weakness } => (*tried, faults, weakness),
    };
    let mut findings: Vec<Finding> = faults.iter().map(|fault| judge_fault(CHECK, fault)).collect();
    findings.extend(weakness.iter().map(|line| Finding::from_line(CHECK, Verdict::Warning, line)));
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("all {tried} work and have their rights")));
    }
    findings
}

fn judge_fault(check: &'static str, RoleFault { role, fault }: &RoleFault) -> Finding {
    match fault {
        Fault::Session(error) => {
            let finding = Finding::from_error(check, Verdict::Problem, error);
            // These two advise to migrate, as the text below does.
            let own = match error {
                StoreError::Schema(_) | StoreError::Denied(_) => String::new(),
                _ => finding.advice.map(|advice| format!("{advice}; otherwise ")).unwrap_or_default(),
            };
            Finding::problem(
                check,
                format!("no session as {role}: {}", finding.found),
                format!(
                    "{own}run `hooksaga migrate`; if it may not create roles, `hooksaga migrate --print-roles` has what an \
                     administrator runs; with a login per role, check database.role_urls"
                ),
            )
        }
        Fault::Lacks(rights) => Finding::problem(
            check,
            format!("{role} lacks {}", rights.join(", ")),
            "run `hooksaga migrate`, which renews the rights",
        ),
    }
}

fn judge_clock(reading: Option<ClockReading>) -> Finding {
    const CHECK: &str = "clock";
    let Some(reading) = reading else {
        return Finding::untried(
            CHECK,
            "the embedded database uses this machine's clock; not tried: whether it is right",
            "synchronise this machine with NTP (timedatectl, chrony): receivers refuse signatures that are more than 5 \
             minutes off",
        );
    };
    let here = Timestamp::now();
    let elapsed = i64::try_from(reading.read_at().elapsed().as_micros()).unwrap_or(i64::MAX);
    let ahead = reading.time.as_micros().saturating_sub(here.as_microsecond().saturating_sub(elapsed));
    judge_difference(ahead, reading.give_or_take())
}

/// `ahead`: how far the database's clock is ahead of this machine's, in microseconds.
fn judge_difference(ahead: i64, give_or_take: Duration) -> Finding {
    const CHECK: &str = "clock";
    let apart = Duration::from_micros(ahead.unsigned_abs());
    let way = if ahead >= 0 { "ahead of" } else { "behind" };
    let found = format!("the database's is {:.3} s {way} this machine's", apart.as_secs_f64());
    let advice = "synchronise both machines with NTP (timedatectl, chrony)";
    match apart.saturating_sub(give_or_take) {
        apart if apart > REFUSED => Finding::problem(
            CHECK,
            format!("{found}: receivers may refuse signatures that are more than 5 minutes off"),
            advice,
        ),
        apart if apart > APART => Finding::warning(CHECK, found, advice),
        _ => Finding::ok(CHECK, found),
    }
}

/// Who works, and whether they keep up.
async fn work(config: &Config, deadline: Instant) -> (Vec<Finding>, Vec<LivingWorker>) {
    let asked = in_time(deadline, async {
        let reader = wiring::open_reader(&config.database).await?;
        Ok((reader.workers().await?, reader.gauges().await?))
    });
    match asked.await {
        Ok((workers, gauges)) => {
            let is_embedded = matches!(config.database.backend, BackendUrl::Sqlite(_));
            let mut findings = judge_workers(&workers, is_embedded);
            findings.push(judge_gauges(&gauges));
            (findings, workers)
        }
        Err(error) => {
            let finding = Finding::from_error("workers", Verdict::Problem, &error);
            let found = format!("cannot list the workers: {}", finding.found);
            (vec![Finding { found, ..finding }], Vec::new())
        }
    }
}

fn judge_workers(workers: &[LivingWorker], is_embedded: bool) -> Vec<Finding> {
    const CHECK: &str = "workers";
    if workers.is_empty() {
        return vec![Finding::warning(
            CHECK,
            "none is alive: events are not delivered",
            if is_embedded {
                "start `hooksaga serve`"
            } else {
                "start `hooksaga serve`, or one with `--only worker`"
            },
        )];
    }
    let slots: u64 = workers.iter().map(|worker| u64::from(worker.slots)).sum();
    let alive = output::count(workers.len() as u64, "worker");
    let mut findings = vec![Finding::ok(CHECK, format!("{alive} alive, {slots} slots"))];
    let versions: BTreeSet<&str> = workers.iter().map(|worker| worker.version.as_str()).collect();
    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        findings.push(Finding::warning(
            CHECK,
            format!("they run several versions: {}", versions.join(", ")),
            "finish the upgrade: replace the copies of the older ones",
        ));
    }
    findings
}

fn judge_gauges(gauges: &QueueGauges) -> Finding {
    const CHECK: &str = "backlog";
    let oldest = Duration::from_micros(gauges.oldest_due_age_micros);
    let waiting = gauges.pending_sagas + gauges.pending_retry_sagas;
    let found = format!(
        "{} waiting ({} held), the oldest that could run due for {:.1} s",
        output::count(waiting, "delivery"),
        gauges.held_sagas,
        oldest.as_secs_f64()
    );
    if oldest > LATE {
        return Finding::warning(
            CHECK,
            found,
            "see HooksagaDeliveriesLate in docs/OPERATIONS.md: is a worker alive, are its slots free, is one endpoint slow?",
        );
    }
    Finding::ok(CHECK, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::Timestamp as Time;

    #[tokio::test]
    async fn no_question_outlasts_the_deadline_of_all() {
        let begun = Instant::now();
        let silent = std::future::pending::<StoreResult<()>>();
        let late = in_time(begun + Duration::from_millis(20), silent).await;
        assert!(late.is_err_and(|error| error.to_string().contains("all checks")));
        assert!(begun.elapsed() < PATIENCE);
        let over = in_time(begun, std::future::pending::<StoreResult<()>>()).await;
        assert!(over.is_err(), "nothing is waited for afterwards");
        assert!(matches!(in_time(begun + TOGETHER, async { Ok(7) }).await, Ok(7)));
    }

    #[test]
    fn clocks_may_differ_by_what_nobody_notices() {
        let second = 1_000_000;
        for (ahead, verdict) in [
            (0, Verdict::Ok),
            (-second, Verdict::Ok),
            (3 * second, Verdict::Warning),
            (-3 * second, Verdict::Warning),
            (301 * second, Verdict::Problem),
            (i64::MIN, Verdict::Problem),
        ] {
            assert_eq!(judge_difference(ahead, Duration::ZERO).verdict, verdict, "{ahead}");
        }
        let slow_call = judge_difference(3 * second, Duration::from_secs(2));
        assert_eq!(slow_call.verdict, Verdict::Ok, "the call itself took as long");
    }

    #[test]
    fn workers_are_counted_and_mixed_versions_named() {
        let worker = |version: &str| LivingWorker {
            worker_id: 1,
            slots: 512,
            version: version.to_owned(),
            started_at: Time::from_micros(0),
            seen_at: Time::from_micros(0),
        };
        for (is_embedded, parts) in [(true, false), (false, true)] {
            let none = judge_workers(&[], is_embedded).remove(0);
            let advice = none.advice.unwrap_or_default();
            assert_eq!((none.verdict, advice.contains("--only")), (Verdict::Warning, parts), "{advice}");
        }
        let one = judge_workers(&[worker("1.0.0"), worker("1.0.0")], false);
        assert!(one.len() == 1 && one[0].found.contains("1024 slots"), "{one:?}");
        let mixed = judge_workers(&[worker("1.0.0"), worker("1.1.0")], false);
        assert!(mixed[1].verdict == Verdict::Warning && mixed[1].found.contains("1.0.0, 1.1.0"), "{mixed:?}");
    }

    #[test]
    fn a_backlog_is_late_when_something_could_run_and_does_not() {
        let gauges = |oldest_due_age_micros| QueueGauges { oldest_due_age_micros, ..QueueGauges::default() };
        assert_eq!(judge_gauges(&gauges(1_000_000)).verdict, Verdict::Ok);
        assert_eq!(judge_gauges(&gauges(61_000_000)).verdict, Verdict::Warning);
    }
}
