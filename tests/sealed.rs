//! Signing secrets at rest belong to one subscription: whoever can write to the database cannot give one to another.

use crate::support::*;
use rusqlite::Connection;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_was_moved_to_another_subscription_signs_nothing() {
    let installation = Installation::sqlite().with("HOOKSAGA_RETRY_MAX_RETRY_LIMIT", "1");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (mine, secret) = api.verified_subscription("mine", &receiver.url("/mine")).await;
    let (other, _) = api.verified_subscription("other", &receiver.url("/other")).await;
    assert_eq!(server.terminate().await, Some(0));
    let database = Connection::open(installation.folder.path().join("hooksaga-data/hooksaga.db")).unwrap();
    let moved = "UPDATE subscription_secrets SET sealed =
                 (SELECT sealed FROM subscription_secrets WHERE subscription_id = ?1) WHERE subscription_id = ?2";
    assert_eq!(database.execute(moved, (mine, other)).unwrap(), 1);
    drop(database);

    let server = installation.serve().await;
    let api = server.api();
    let to_other = api.event("other", &json!(1)).await;
    let saga = api.delivery_with_status(to_other, "DeadLettered").await;
    assert_eq!(saga["final_error_code"], "INTERNAL");
    assert!(receiver.deliveries("/other").is_empty(), "nothing goes out that is signed with a stolen secret");
    eventually("the log says why", || async {
        (server.said("cannot open a signing secret").len() == 1).then_some(())
    })
    .await;
    let to_mine = api.event("mine", &json!(1)).await;
    api.delivery_with_status(to_mine, "Completed").await;
    assert!(signed_by(&receiver.deliveries("/mine")[0], &secret));
}
