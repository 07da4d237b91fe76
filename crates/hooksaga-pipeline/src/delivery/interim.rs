//! How many interim (1xx) responses are accepted before the response proper.
//!
//! The library skips them, as many as come: an endpoint that sends nothing else would keep a core busy until
//! the deadline.

use http::Request;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use tokio::sync::Notify;

/// A server sends one or two: `100 Continue`, `103 Early Hints`, or a `102 Processing` now and then.
const MOST: u32 = 16;

/// Counts the interim responses to one request.
pub(super) struct InterimLimit(Arc<Count>);

#[derive(Default)]
struct Count {
    seen: AtomicU32,
    exceeded: Notify,
}

impl InterimLimit {
    pub(super) fn on<B>(request: &mut Request<B>) -> Self {
        let count = Arc::<Count>::default();
        let counted = Arc::clone(&count);
        hyper::ext::on_informational(request, move |_| {
            if counted.seen.fetch_add(1, Ordering::Relaxed) == MOST {
                counted.exceeded.notify_one();
            }
        });
        Self(count)
    }

    /// Returns once there were more.
    pub(super) async fn exceeded(&self) {
        self.0.exceeded.notified().await;
    }
}
