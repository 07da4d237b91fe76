//! The list of deliveries shows for each: its event, its subscription, and the last response.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, TOKEN, TYPE, URL, append, append_many, apply, claim, correlation, deliver_round,
        delivered, external_id, failed, new_event, only, route, schedule_and_mark, scope, tenant, url,
        verified, verified_for, verified_with_limit,
    },
};
use hooksaga_saga::{ErrorCode, SagaId, SubscriptionId};
use hooksaga_store::{Delivery, DeliveryFilter, JobReport, NewEvent, PageRequest, Stores, SubscriptionPatch};

const FIRST: PageRequest = PageRequest { limit: 50, before: None };

/// Every delivery, oldest first. Checks that the list, the single delivery, the event's deliveries and the deliveries of given
/// ids show the same of each.
async fn deliveries(stores: &Stores) -> Vec<Delivery> {
    let mut items = stores.reader.deliveries(FIRST.of(&ALL, &DeliveryFilter::default())).await.unwrap().items;
    items.reverse();
    for item in &items {
        let single = stores.reader.delivery(&ALL, item.saga_id).await.unwrap().unwrap().delivery;
        assert_eq!(*item, single);
        let event = stores.reader.event(&ALL, item.event_id).await.unwrap().unwrap();
        assert!(event.deliveries.contains(item));
    }
    let ids: Vec<SagaId> = items.iter().map(|item| item.saga_id).chain([SagaId(4_711_000)]).collect();
    let mut given = stores.reader.deliveries_of(&ALL, &ids).await.unwrap();
    given.sort_by_key(|item| item.saga_id.0);
    assert_eq!(given, items);
    items
}

pub async fn a_delivery_shows_its_event_and_where_it_goes(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await;
    let named = NewEvent {
        external_id: Some(external_id("order-17")),
        correlation_id: correlation("trace-17"),
        ..new_event(TYPE)
    };
    append(&stores, named).await;
    append(&stores, NewEvent { correlation_id: correlation("trace-18"), ..new_event(TYPE) }).await;
    route(&stores).await;
    let shown = deliveries(&stores).await;
    let [named, unnamed] = shown.as_slice() else { panic!("{shown:?}") };
    assert_eq!((named.event_type.as_str(), named.external_id.as_deref()), (TYPE, Some("order-17")));
    assert_eq!((unnamed.event_type.as_str(), unnamed.external_id.as_deref()), (TYPE, None));
    assert_eq!((named.correlation_id.as_str(), unnamed.correlation_id.as_str()), ("trace-17", "trace-18"));
    assert_eq!((named.callback_url.as_str(), unnamed.callback_url.as_str()), (URL, URL));

    let moved =
        SubscriptionPatch { callback_url: Some(url("https://new.example/")), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, subscription, &moved).await.unwrap();
    assert!(deliveries(&stores).await.iter().all(|item| item.callback_url == "https://new.example/"));
}

pub async fn a_delivery_shows_what_was_answered_last(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified_with_limit(&stores, URL, 5).await;
    append_many(&stores, 2).await;
    let sagas = route(&stores).await;
    let last = async |saga: SagaId| {
        let shown = deliveries(&stores).await;
        only(shown.into_iter().filter(|item| item.saga_id == saga).collect()).last_response_status
    };
    assert_eq!((last(sagas[0]).await, last(sagas[1]).await), (None, None), "nothing was sent");
    let mut previous = None;
    for (answer, expected) in
        [(None, None), (Some(500), Some(500)), (Some(429), Some(429)), (None, Some(429))]
    {
        schedule_and_mark(&stores).await;
        let reports: Vec<_> = claim(&stores, TOKEN)
            .await
            .jobs
            .iter()
            .map(|job| match job.held.saga_id == sagas[0] {
                true => JobReport { response_status: answer, ..failed(job.as_ref(), ErrorCode::TIMEOUT) },
                false => delivered(job.as_ref()),
            })
            .collect();
        assert_eq!(last(sagas[0]).await, previous, "an attempt that is under way changes nothing");
        previous = expected;
        stores.worker.report(&reports).await.unwrap();
        apply(&stores, AT_ONCE).await;
        assert_eq!(last(sagas[0]).await, expected);
        assert_eq!(last(sagas[1]).await, Some(204), "its own, not its neighbour's");
    }
    deliver_round(&stores, None, AT_ONCE).await;
    assert_eq!(last(sagas[0]).await, Some(204), "the success at the end");
}

pub async fn what_is_read_by_its_ids_is_the_tenants_own_and_still_there(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (own, gone) = ("https://own.example/", "https://gone.example/");
    let own = (verified_for(&stores, "acme", TYPE, own).await, own);
    let gone = verified_for(&stores, "acme", TYPE, gone).await;
    let other = (verified_for(&stores, "rival", TYPE, URL).await, URL);
    for name in ["acme", "rival"] {
        append(&stores, NewEvent { tenant: tenant(name), ..new_event(TYPE) }).await;
    }
    route(&stores).await;
    assert!(stores.admin.delete(&ALL, gone).await.unwrap());

    let subscriptions = [own.0, gone, other.0, SubscriptionId(4711)];
    let sagas: Vec<SagaId> = deliveries(&stores).await.iter().map(|item| item.saga_id).collect();
    assert_eq!(sagas.len(), 3, "those of a subscription that was deleted are there");
    for (who, urls, tenants) in [
        (ALL, vec![own, other], vec!["acme", "acme", "rival"]),
        (scope("acme"), vec![own], vec!["acme", "acme"]),
        (scope("rival"), vec![other], vec!["rival"]),
        (scope("nobody"), vec![], vec![]),
    ] {
        let mut found = stores.reader.callback_urls(&who, &subscriptions).await.unwrap();
        found.sort_by_key(|(id, _)| id.0);
        let found: Vec<_> = found.iter().map(|(id, url)| (*id, url.as_str())).collect();
        assert_eq!(found, urls, "{who:?}");
        let mut found = stores.reader.deliveries_of(&who, &sagas).await.unwrap();
        found.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        let found: Vec<_> = found.iter().map(|delivery| delivery.tenant.as_str()).collect();
        assert_eq!(found, tenants, "{who:?}");
        assert_eq!(stores.reader.callback_urls(&who, &[]).await.unwrap(), []);
        assert_eq!(stores.reader.deliveries_of(&who, &[]).await.unwrap(), []);
    }
}
