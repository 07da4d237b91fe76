//! Audit records: those who act add them, the API reads them, and nobody changes them.

use super::{
    TestDatabase,
    fixture::{ALL, asked, scope, tenant},
    rows::db_now,
};
use hooksaga_saga::KeyId;
use hooksaga_store::{
    AuditFilter, AuditRecord, NewAuditRecord, PageRequest, Role, StoreError, Stores, TenantScope,
};
use std::{cmp::Reverse, time::Duration};

const FIRST: PageRequest = PageRequest { limit: 100, before: None };

fn record(action: &str, n: i64, of: Option<&str>) -> NewAuditRecord {
    NewAuditRecord {
        key_id: (n > 0).then_some(KeyId(n)),
        key_name: format!("Schlüssel {n}"),
        action: action.to_owned(),
        target: format!("subscriptions/{n}"),
        tenant: of.map(tenant),
    }
}

fn content(record: AuditRecord) -> NewAuditRecord {
    NewAuditRecord {
        key_id: record.key_id,
        key_name: record.key_name,
        action: record.action,
        target: record.target,
        tenant: record.tenant.map(|name| tenant(&name)),
    }
}

pub async fn what_was_recorded_is_listed_newest_first(db: &dyn TestDatabase) {
    let stores = db.stores();
    let before = db_now(db).await;
    let records = [
        record("subscription.create", 1, Some("acme")),
        record("subscription.change", 0, None),
        record("subscription.create", 2, Some("other")),
    ];
    for record in &records {
        stores.keys.record(record).await.unwrap();
    }
    let all = stores.reader.audit(FIRST.of(&ALL, &AuditFilter::default())).await.unwrap();
    assert_eq!(all.next, None);
    for stored in &all.items {
        assert!(stored.at.since(before) < Duration::from_secs(60), "{stored:?}");
    }
    let times: Vec<_> = all.items.iter().map(|record| record.at).collect();
    let newest_first: Vec<_> = all.items.into_iter().map(content).collect();
    assert_eq!(newest_first, [records[2].clone(), records[1].clone(), records[0].clone()]);

    let found = async |scope, filter: AuditFilter| -> Vec<_> {
        let page = stores.reader.audit(FIRST.of(&scope, &filter)).await.unwrap();
        page.items.into_iter().map(content).collect()
    };
    let created = || AuditFilter { action: asked("subscription.create"), ..AuditFilter::default() };
    assert_eq!(found(ALL, created()).await, [records[2].clone(), records[0].clone()]);
    assert_eq!(found(scope("acme"), created()).await, [records[0].clone()]);
    assert!(found(scope("nobody"), AuditFilter::default()).await.is_empty());
    let later = AuditFilter { created_after: Some(times[0].after(Duration::from_micros(1))), ..created() };
    assert!(found(ALL, later).await.is_empty());
    let earlier = AuditFilter { created_before: Some(times[2]), ..AuditFilter::default() };
    assert!(found(ALL, earlier).await.is_empty());
    let about = |target: &str| AuditFilter { target: Some(target.to_owned()), ..AuditFilter::default() };
    assert_eq!(found(ALL, about(&records[0].target)).await, [records[0].clone()]);
    assert!(found(scope("other"), about(&records[0].target)).await.is_empty());
    assert!(found(ALL, about(&format!("{}0", records[0].target))).await.is_empty());

    let first = PageRequest { limit: 2, before: None };
    let page = stores.reader.audit(first.of(&ALL, &AuditFilter::default())).await.unwrap();
    assert_eq!((page.items.len(), page.next), (2, Some(page.items[1].id)));
    let rest = PageRequest { limit: 2, before: page.next };
    let rest = stores.reader.audit(rest.of(&ALL, &AuditFilter::default())).await.unwrap();
    assert_eq!((rest.items.len(), rest.next), (1, None));
}

/// By pages of each size, of all and of a tenant, also where the clock went back in between.
pub async fn records_of_some_times_are_listed_by_pages(db: &dyn TestDatabase) {
    let stores = db.stores();
    for n in 1..=9 {
        let of = ["acme", "other"][usize::from(n % 3 == 0)];
        stores.keys.record(&record("subscription.create", n, Some(of))).await.unwrap();
        if n == 4 {
            let sql = "INSERT INTO audit_records (at, key_name, action, target, tenant) \
                       SELECT min(at), 'x', 'early', 't', 'acme' FROM audit_records";
            db.execute_as_owner(sql).await.unwrap();
        }
    }
    let all = stores.reader.audit(FIRST.of(&ALL, &AuditFilter::default())).await.unwrap().items;
    let times: Vec<_> = all.iter().map(|record| record.at).collect();
    let ends = || times.iter().map(|at| Some(*at)).chain([None]);
    for (after, before) in ends().flat_map(|after| ends().map(move |before| (after, before))) {
        let filter = AuditFilter { created_after: after, created_before: before, ..AuditFilter::default() };
        for scope in [ALL, scope("acme")] {
            let fits = |record: &&AuditRecord| {
                record.tenant.as_deref().is_some_and(|tenant| scope.includes(tenant))
                    && after.is_none_or(|after| record.at >= after)
                    && before.is_none_or(|before| record.at < before)
            };
            let mut expected: Vec<_> = all.iter().filter(fits).cloned().collect();
            if after.or(before).is_some() {
                expected.sort_by_key(|record| Reverse((record.at, record.id)));
            }
            for limit in [1, 3, 100] {
                let found = pages(&stores, &scope, &filter, limit).await;
                assert_eq!(found, expected, "{scope:?} {filter:?} by {limit}");
            }
        }
    }
}

async fn pages(stores: &Stores, scope: &TenantScope, filter: &AuditFilter, limit: u32) -> Vec<AuditRecord> {
    let (mut found, mut before) = (Vec::new(), None);
    for _ in 0..20 {
        let page = PageRequest { limit, before };
        let page = stores.reader.audit(page.of(scope, filter)).await.unwrap();
        assert!(page.items.len() <= limit as usize);
        found.extend(page.items);
        before = page.next;
        if before.is_none() {
            return found;
        }
    }
    panic!("the pages have no end: {found:?}");
}

pub async fn no_record_is_ever_changed_or_deleted(db: &dyn TestDatabase) {
    db.stores().keys.record(&record("subscription.create", 1, None)).await.unwrap();
    for sql in ["UPDATE audit_records SET key_name = 'somebody else'", "DELETE FROM audit_records"] {
        // As the schema's owner, who has every right.
        let refused = db.execute_as_owner(sql).await;
        assert!(matches!(refused, Err(StoreError::Refused(_))), "{sql}: {refused:?}");
    }
    for role in Role::ALL {
        let denied = db.execute_as(*role, "DELETE FROM audit_records").await;
        // The janitor has the right, but the schema accepts it for old records only.
        let is_denied = match role {
            Role::HistoryJanitor => matches!(denied, Err(StoreError::Refused(_))),
            _ => matches!(denied, Err(StoreError::Denied(_))),
        };
        assert!(is_denied, "{role}: {denied:?}");
    }
    let all = db.stores().reader.audit(FIRST.of(&ALL, &AuditFilter::default())).await.unwrap();
    assert_eq!(
        all.items.into_iter().map(content).collect::<Vec<_>>(),
        [record("subscription.create", 1, None)]
    );
}
