//! Catches log lines of one test among many in the same process.
//!
//! One subscriber for the whole process: with one per test, a line's first use by another test, which has none,
//! switches that line off for everybody. It must be there before a component runs, so [`install`] is called
//! wherever a test begins.

use serde_json::Value;
use std::{
    cell::RefCell,
    io,
    sync::{Arc, Mutex, Once},
};
use tracing_subscriber::fmt::MakeWriter;

type Bytes = Arc<Mutex<Vec<u8>>>;

thread_local! {
    /// Where the lines of this thread go; nowhere unless a test asked for them.
    static CAPTURED: RefCell<Option<Bytes>> = const { RefCell::new(None) };
}

/// Returns when the subscriber is there.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let subscriber = tracing_subscriber::fmt().json().with_writer(LogCapture).finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
}

/// The lines that this thread logs while it exists. A test on a runtime of one thread sees all of its own.
pub(crate) struct Capture(Bytes);

impl Capture {
    pub(crate) fn start() -> Self {
        install();
        let bytes = Bytes::default();
        CAPTURED.set(Some(bytes.clone()));
        Self(bytes)
    }

    /// The lines so far, oldest first.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        CAPTURED.set(None);
    }
}

/// Sends each line to the capture of the thread that logs it.
struct LogCapture;

struct Line(Option<Bytes>);

impl<'a> MakeWriter<'a> for LogCapture {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        // A thread that is ending has none any more.
        Line(CAPTURED.try_with(|captured| captured.borrow().clone()).ok().flatten())
    }
}

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(captured) = &self.0 {
            captured.lock().unwrap().extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
