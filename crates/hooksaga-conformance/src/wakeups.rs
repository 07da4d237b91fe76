//! Signals between processes, if the back end has them.

use super::TestDatabase;
use hooksaga_store::Stage;
use std::time::Duration;

pub async fn a_signal_reaches_a_listener_in_another_process(db: &dyn TestDatabase) {
    let (here, there) = (db.stores().wakeups, db.second_instance().await.wakeups);
    let Some(mut listener) = there.listen().await.unwrap() else {
        // Without signals, notifying nobody is no error.
        here.notify(Stage::ALL).await.unwrap();
        return;
    };
    for stage in Stage::ALL {
        here.notify(&[*stage]).await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(30), listener.next()).await;
        assert_eq!(heard.expect("the signal arrives").unwrap(), *stage);
    }
    here.notify(&[]).await.unwrap();
    here.notify(&[Stage::Worker, Stage::Router]).await.unwrap();
    let mut heard = Vec::new();
    for _ in 0..2 {
        let stage = tokio::time::timeout(Duration::from_secs(30), listener.next()).await;
        heard.push(stage.expect("the signal arrives").unwrap());
    }
    heard.sort();
    assert_eq!(heard, [Stage::Router, Stage::Worker]);
}
