//! Work that a `drop` waits for.

use std::thread;

/// Runs this to its end, beside whatever runtime the caller is in. `what` says what has failed if it panics, unless a
/// test is failing already.
pub fn run_aside(what: &str, work: impl Future<Output = ()> + Send + 'static) {
    let running = thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    });
    if running.join().is_err() && !thread::panicking() {
        panic!("{what}");
    }
}
