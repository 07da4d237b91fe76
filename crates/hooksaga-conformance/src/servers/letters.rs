//! `letter_heads`, which lists of letters are read from: if a letter is stored at the same moment as its saga is sent again, and
//! after a restore.

use super::ServerDatabase;
use crate::{
    fixture::{
        ALL, AT_ONCE, MANY, URL, append_many, deliver_round, letters, only, route, verified_with_limit,
    },
    letter_heads::{fill, list, resend},
    rows::changes,
};
use hooksaga_saga::{ErrorCode, SagaId};
use hooksaga_store::{DeadLetterFilter, DeadLetterSummary, Stores};
use std::time::Duration;
use tokio::time::timeout;

const WAITS: Duration = Duration::from_millis(300);

/// A saga that has just died.
async fn dead_saga(stores: &Stores) -> SagaId {
    verified_with_limit(stores, URL, 1).await;
    append_many(stores, 1).await;
    let saga = only(route(stores).await);
    deliver_round(stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    saga
}

async fn sent_again(stores: &Stores) -> Vec<SagaId> {
    let filter = DeadLetterFilter { requeued: Some(true), ..DeadLetterFilter::default() };
    list(stores, &ALL, &filter).await.into_iter().map(|letter| letter.saga_id).collect()
}

pub async fn who_sends_again_waits_for_a_letter_that_is_being_stored(db: &dyn ServerDatabase) {
    let stores = db.stores();
    let saga = dead_saga(&stores).await;
    let store = [
        "SELECT saga_id FROM pending_dead_letters FOR UPDATE".to_owned(),
        format!(
            "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload)
             SELECT id, event_id, subscription_id, 'TIMEOUT', '1' FROM webhook_delivery_sagas WHERE id = {saga}"
        ),
        "DELETE FROM pending_dead_letters".to_owned(),
    ];
    let commit = db.begin(&store).await;
    let mut resent = Box::pin(resend(&stores, saga));
    assert!(timeout(WAITS, resent.as_mut()).await.is_err(), "it does not wait");
    commit.await;
    resent.await;
    assert_eq!(sent_again(&stores).await, [saga]);
}

pub async fn no_letter_is_stored_while_its_saga_is_sent_again(db: &dyn ServerDatabase) {
    let stores = db.stores();
    let saga = dead_saga(&stores).await;
    let successor = format!(
        "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, max_retry_limit)
         SELECT event_id, subscription_id, 1, 5 FROM webhook_delivery_sagas WHERE id = {saga}"
    );
    let commit = db.begin(&[successor]).await;
    assert_eq!(stores.dead_letters.bury(MANY).await.unwrap().len(), 0, "it is left out");
    commit.await;
    stores.dead_letters.bury(MANY).await.unwrap();
    assert_eq!(sent_again(&stores).await, [saga]);
}

pub async fn lists_are_repaired_after_a_restore(db: &dyn ServerDatabase) {
    let stores = db.stores();
    let repair = async || db.repair_lists().await.unwrap();
    fill(&stores).await;
    let all = letters(&stores).await;
    assert_eq!(repair().await, 0, "triggers keep them");
    let lost = format!("DELETE FROM letter_heads WHERE letter_id IN ({}, {})", all[3].id, all[9].id);
    changes(db, &lost, 2).await;
    let requeued = all.iter().filter(|letter| letter.requeued_saga_id.is_some()).count();
    db.execute_as_owner("UPDATE letter_heads SET requeued = FALSE WHERE requeued").await.unwrap();
    let stray = format!("UPDATE letter_heads SET letter_id = 1000000 WHERE letter_id = {}", all[5].id);
    changes(db, &stray, 1).await;
    assert!(repair().await >= 2 + requeued as u64 + 2);
    for wanted in [None, Some(true), Some(false)] {
        let filter = DeadLetterFilter { requeued: wanted, ..DeadLetterFilter::default() };
        let fits = |letter: &&DeadLetterSummary| {
            wanted.is_none_or(|wanted| wanted == letter.requeued_saga_id.is_some())
        };
        let expected: Vec<_> = all.iter().filter(fits).cloned().collect();
        assert_eq!(list(&stores, &ALL, &filter).await, expected, "{filter:?}");
    }
    assert_eq!(repair().await, 0, "twice is once");
}
