//! No hot statement scans a table, finished rows, or work that cannot run now.

use super::{
    Dialect, HotStatement, TestDatabase,
    bulk_fixtures::{analyze, fill, with_backlog},
    fixture::{
        ALL, AT_ONCE, DEFAULT_LIMIT, TYPE, append, create_jobs, finish_claimable, new_event, verified,
    },
    rows::{changes, count, ids},
};
use hooksaga_store::{Allotted, RouteLimits, SubscriptionPatch};
use std::collections::HashSet;

/// Tables that grow without bound.
const BIG: &[&str] = &[
    "events",
    "webhook_delivery_sagas",
    "webhook_delivery_jobs",
    "dead_letters",
    "letter_heads",
    "subscription_secrets",
    "endpoint_failures",
    "delivery_counts",
];

/// Indexes over open work only: a scan of one reads no finished row.
const OPEN_WORK: &[&str] = &[
    "idx_job_pending",
    "idx_job_leased",
    "idx_job_parked",
    "idx_saga_waiting",
    "idx_saga_status_retry",
    "idx_sub_open_check",
    "idx_sub_open_check_tenant",
    "idx_sub_unannounced",
    "idx_failures_gone",
    "idx_failures_since",
];

/// The indexes that a step has to use.
fn intended(statement: HotStatement) -> &'static [&'static str] {
    match statement {
        HotStatement::Append => &["uniq_event_external_id"],
        HotStatement::Waiting | HotStatement::CreateJobs => &["idx_saga_waiting"],
        HotStatement::Load => &["idx_job_pending", "idx_job_leased"],
        HotStatement::Claim => &["idx_job_pending"],
        HotStatement::ResetExpired => &["idx_job_leased"],
        HotStatement::TakeChecks => &["idx_sub_open_check_tenant"],
        HotStatement::Care => &["idx_failures_gone", "idx_failures_since", "idx_sub_unannounced"],
        HotStatement::IndexLists => &["idx_list_block"],
        HotStatement::Redrive => {
            &["idx_event_created", "idx_catch_up_next", "idx_dead_letter_subscription", "idx_head_tenant"]
        }
        HotStatement::Remove => {
            &["idx_event_created", "uniq_saga_event_subscription", "idx_dead_letter_event"]
        }
        HotStatement::Gauges => &["idx_saga_waiting", "idx_job_pending", "idx_job_leased"],
        // By primary key, which is named differently on each database. PostgreSQL finds parked jobs by their subscription.
        HotStatement::Route
        | HotStatement::Park
        | HotStatement::MarkInProgress
        | HotStatement::HandBack
        | HotStatement::Report
        | HotStatement::Apply
        | HotStatement::Bury => &[],
    }
}

/// Indexes that would draw a step away from its primary key, and make it quadratic.
fn tempting(statement: HotStatement) -> &'static [&'static str] {
    match statement {
        HotStatement::MarkInProgress => &["idx_saga_waiting", "idx_saga_status_retry"],
        HotStatement::HandBack | HotStatement::Report => &["idx_job_leased", "idx_job_pending"],
        HotStatement::Apply => &["idx_saga_waiting", "idx_saga_status_retry"],
        HotStatement::Waiting | HotStatement::CreateJobs => &["idx_saga_status_retry"],
        _ => &[],
    }
}

/// A line of a SQLite plan that reads a whole table. Plans show names only, so this lists the tables that may be scanned.
fn scans_sqlite(statement: HotStatement, plan: &str) -> Vec<&str> {
    let mut small = HashSet::from([
        "q",
        "unrouted_events",
        "finished_jobs",
        "pending_dead_letters",
        "pending_announcements",
        "catch_ups",
        "CONSTANT",
    ]);
    if statement == HotStatement::Gauges {
        // Configuration: as many rows as there are subscriptions.
        small.extend(["s", "subscriptions"]);
    }
    for line in plan.lines().map(str::trim) {
        let names = ["MATERIALIZE ", "CO-ROUTINE "].iter().find_map(|word| line.strip_prefix(word));
        small.extend(names);
    }
    let scans = |line: &&str| {
        let Some(rest) = line.trim().strip_prefix("SCAN ") else {
            return line.contains("AUTOMATIC");
        };
        let name = rest.split(' ').next().unwrap_or(rest);
        !small.contains(name) && !OPEN_WORK.iter().any(|index| rest.contains(index))
    };
    plan.lines().filter(scans).collect()
}

/// Tables that grow with the number of customers: no step of a delivery scans one of them either.
const CONFIGURATION: &[&str] = &["subscriptions", "subscription_topics"];

/// The lines of a PostgreSQL plan that read a whole big table, one after the other or along an index.
fn scans_postgres(statement: HotStatement, plan: &str) -> Vec<&str> {
    let delivers = matches!(
        statement,
        HotStatement::Route | HotStatement::Waiting | HotStatement::CreateJobs | HotStatement::Claim
    );
    let mut lines = plan.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let first_word = |rest: &str| rest.split(' ').next().unwrap_or(rest).to_owned();
        let of_big_table = |rest: &str| {
            let table = first_word(rest);
            BIG.contains(&table.as_str()) || (delivers && CONFIGURATION.contains(&table.as_str()))
        };
        if line.split("Seq Scan on ").nth(1).is_some_and(of_big_table) {
            found.push(line);
        }
        // Without a condition an index is scanned from end to end.
        let conditional = lines.peek().is_some_and(|next| next.trim().starts_with("Index Cond:"));
        if let Some((index, table)) =
            line.split("Scan using ").nth(1).and_then(|rest| rest.split_once(" on "))
            && of_big_table(table)
            && !conditional
            && !OPEN_WORK.contains(&index)
        {
            found.push(line);
        }
    }
    found
}

/// The lines of a MySQL plan that read a whole table or index. They show aliases, so this lists the aliases that may be
/// scanned: of the queues, and of the rows that are parameters of the statement.
fn scans_mysql(statement: HotStatement, plan: &str) -> Vec<&str> {
    let mut small =
        vec!["t", "u", "unrouted_events", "finished_jobs", "pending_dead_letters", "pending_announcements"];
    if statement == HotStatement::Gauges {
        // Configuration: as many rows as there are subscriptions.
        small.push("sub");
        // The minutes of a day, and counts that end at a limit.
        small.extend(["hours", "minutes", "day", "s", "j"]);
    }
    let scans = |line: &&str| {
        let scanned =
            ["Table scan on ", "Full index scan on "].iter().find_map(|words| line.strip_prefix(words));
        let name = scanned.map(|rest| rest.split(' ').next().unwrap_or(rest));
        name.is_some_and(|name| !small.contains(&name) && !name.starts_with('<') && name != "-")
    };
    plan.lines().filter(scans).collect()
}

fn scans(dialect: Dialect, statement: HotStatement, plan: &str) -> Vec<&str> {
    match dialect {
        Dialect::Sqlite => scans_sqlite(statement, plan),
        Dialect::Postgres => scans_postgres(statement, plan),
        Dialect::MySql => scans_mysql(statement, plan),
    }
}

/// How many other subscriptions there are. `make torture` sets 100,000 (`HOOKSAGA_SUBSCRIPTIONS`), which takes seconds.
fn subscriptions() -> u32 {
    let told = std::env::var("HOOKSAGA_SUBSCRIPTIONS");
    // Half of them are paused. No database is filled with more at a time.
    told.map_or(5000, |text| text.parse().expect("a number")).clamp(2, 100_000) / 2 * 2
}

/// For docs/PLANS.md.
#[expect(clippy::print_stdout, reason = "a test shows it with --nocapture")]
fn show(plan: &str) {
    println!("{plan}");
}

async fn check_plan(db: &dyn TestDatabase, statement: HotStatement) {
    let plan = db.explain(statement).await.unwrap();
    assert!(!plan.trim().is_empty(), "{statement:?} has a plan");
    if statement == HotStatement::Route {
        show(&plan);
    }
    let found = scans(db.dialect(), statement, &plan);
    assert!(found.is_empty(), "{statement:?} scans: {found:#?}\n{plan}");
    if (statement, db.dialect()) == (HotStatement::Route, Dialect::Sqlite) {
        // Here the primary key has no name; its columns show.
        assert!(plan.contains("(tenant=? AND topic=? AND subscription_id>?)"), "not by topic:\n{plan}");
    }
    for index in intended(statement) {
        assert!(plan.contains(index), "{statement:?} does not use {index}:\n{plan}");
    }
    for index in tempting(statement) {
        assert!(!plan.contains(index), "{statement:?} must not use {index}:\n{plan}");
    }
}

pub async fn no_hot_statement_scans_a_full_table(db: &dyn TestDatabase) {
    fill(db, 5000, subscriptions()).await;
    if db.dialect() == Dialect::Sqlite {
        // An embedded database has no statistics unless somebody runs ANALYZE by hand: the plan must be good with and
        // without.
        for statement in HotStatement::ALL {
            check_plan(db, *statement).await;
        }
    }
    analyze(db).await;
    for statement in HotStatement::ALL {
        check_plan(db, *statement).await;
    }
}

pub async fn an_event_for_thousands_is_routed_in_bounded_steps(db: &dyn TestDatabase) {
    /// The most subscriptions that a step considers.
    const STEP: u32 = 700;
    let subscribers = subscriptions();
    let stores = db.stores();
    fill(db, 5000, subscribers).await;
    // Every second one is paused: considered, and not served.
    let paused = "UPDATE subscriptions SET active = FALSE WHERE event_type = 'many' AND id % 2 = 0";
    changes(db, paused, u64::from(subscribers / 2)).await;
    analyze(db).await;
    let before = count(db, "webhook_delivery_sagas").await;
    append(&stores, new_event("many")).await;
    append(&stores, new_event("nobody.wants.this")).await;
    let mut sagas = 0;
    let mut passes = 0;
    while count(db, "unrouted_events").await > 0 {
        let limits = RouteLimits { events: 100, sagas: STEP };
        let batch = stores.router.route(limits, DEFAULT_LIMIT).await.unwrap();
        let made: usize = batch.events.iter().map(|event| event.sagas.len()).sum();
        assert!(made <= 350, "{made}: paused ones count, too");
        sagas += made;
        passes += 1;
        assert!(passes <= subscribers.div_ceil(STEP) + 1, "it gets on");
    }
    assert!(passes >= subscribers.div_ceil(STEP), "{passes}");
    assert_eq!(sagas, subscribers as usize / 2);
    let distinct =
        "SELECT count(DISTINCT subscription_id) FROM webhook_delivery_sagas WHERE status = 'Pending'";
    assert_eq!(ids(db, distinct).await, [i64::from(subscribers / 2)]);
    assert_eq!(count(db, "webhook_delivery_sagas").await, before + i64::from(subscribers / 2));

    // Every one of them waits now: a scan of who waits is bounded all the same.
    analyze(db).await;
    for statement in
        [HotStatement::Route, HotStatement::Waiting, HotStatement::CreateJobs, HotStatement::Claim]
    {
        check_plan(db, statement).await;
    }
    let page = stores.orchestrator.waiting(None, 1000).await.unwrap();
    assert_eq!(page.subscriptions.len(), 1000);
    let allotted: Vec<_> =
        page.subscriptions.iter().map(|id| Allotted { subscription_id: *id, jobs: 2 }).collect();
    let created = create_jobs(&stores, &allotted).await;
    assert_eq!(created.len(), 1000, "one each: no more is due");
    assert_eq!(stores.orchestrator.waiting(None, 1).await.unwrap().subscriptions.len(), 1);
}

pub async fn a_backlog_that_cannot_run_is_not_visited(db: &dyn TestDatabase) {
    const PAUSED: u32 = 20_000;
    const HANGING: u32 = 2000;
    let stores = db.stores();
    let event = append(&stores, new_event("backlog")).await.id;
    super::fixture::route(&stores).await;
    let paused = with_backlog(db, &stores, "https://paused.example/", event, PAUSED).await;
    let hanging = with_backlog(db, &stores, "https://hanging.example/", event, HANGING).await;
    let pause = SubscriptionPatch { active: Some(false), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, paused, &pause).await.unwrap();
    let healthy = verified(&stores, TYPE, "https://healthy.example/").await;
    super::fixture::append_many(&stores, 30).await;
    assert_eq!(super::fixture::route(&stores).await.len(), 30);
    analyze(db).await;

    let page = stores.orchestrator.waiting(None, 100).await.unwrap();
    assert_eq!(page.subscriptions, [hanging, healthy]);
    let allotted = |of_hanging| {
        [(paused, 4), (hanging, of_hanging), (healthy, 100)]
            .map(|(subscription_id, jobs)| Allotted { subscription_id, jobs })
    };
    let sagas = create_jobs(&stores, &allotted(4)).await;
    let of = |id| sagas.iter().filter(|saga| saga.subscription_id == id).count();
    assert_eq!((of(paused), of(hanging), of(healthy)), (0, 4, 30));
    assert_eq!(create_jobs(&stores, &allotted(0)).await, [], "the hanging one gets nothing more");

    // The healthy one continues for as long as it has work.
    check_plan(db, HotStatement::Waiting).await;
    check_plan(db, HotStatement::CreateJobs).await;
    assert_eq!(finish_claimable(&stores, None, AT_ONCE).await.results.len(), 34);
    super::fixture::append_many(&stores, 5).await;
    super::fixture::route(&stores).await;
    let sagas = create_jobs(&stores, &allotted(0)).await;
    assert_eq!(sagas.iter().filter(|saga| saga.subscription_id == healthy).count(), 5);

    let untouched = format!("webhook_delivery_sagas WHERE subscription_id = {paused} AND status = 'Pending'");
    assert_eq!(count(db, &untouched).await, i64::from(PAUSED), "the paused backlog is as it was");
    let gauges = stores.reader.gauges().await.unwrap();
    assert_eq!(gauges.held_sagas, u64::from(PAUSED));
    let resume = SubscriptionPatch { active: Some(true), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, paused, &resume).await.unwrap();
    let some = [Allotted { subscription_id: paused, jobs: 100 }];
    assert_eq!(create_jobs(&stores, &some).await.len(), 100);
}
