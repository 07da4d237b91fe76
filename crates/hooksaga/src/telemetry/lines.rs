//! How log records get to stdout: threads append their lines to one buffer, and a separate thread writes it.
//!
//! A single line is written at once; lines that follow within [`PAUSE`] are written together. A reader that
//! does not keep up delays nobody: what does not fit into [`CAPACITY`] is dropped, and counted, as is what cannot be written
//! (stdout is a file on a full disk). A reader that has gone wants nothing: that is no loss.

use std::{
    io::{self, Write},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// The most that may wait to be written, beside as much that is being written: a third of a second of full load.
const CAPACITY: usize = 8 << 20;
/// As much memory is kept for the next lines.
const KEPT: usize = 1 << 20;
/// How long the thread rests after it has written. Without it, the thread wakes up for every single record,
/// and every thread that logs pays for waking it. It bounds how late a record is, and how much of the log is
/// lost if the process is killed.
const PAUSE: Duration = Duration::from_millis(5);
/// How often lost records are complained about at most.
const COMPLAIN_AFTER: Duration = Duration::from_secs(10);
/// How long the end of the program waits for the last lines: a reader may have stopped reading.
const LAST: Duration = Duration::from_secs(1);

/// Records that did not fit or could not be written, in this process.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// How many log records were lost so far.
pub(crate) fn dropped_records() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Takes lines. Clones share one text.
#[derive(Clone)]
pub(super) struct LogLines(Arc<Shared>);

#[derive(Default)]
struct Shared {
    text: Mutex<Text>,
    /// For the thread that writes.
    wake: Condvar,
}

#[derive(Default)]
struct Text {
    waiting: Vec<u8>,
    /// The thread sleeps until it is woken.
    asleep: bool,
    ended: bool,
    dropped: u64,
}

impl Shared {
    fn text(&self) -> MutexGuard<'_, Text> {
        // Whoever holds it only copies bytes.
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has gathered, in exchange for an empty `batch`; nothing at the end.
    fn next(&self, batch: &mut Vec<u8>) -> bool {
        let mut text = self.text();
        while text.waiting.is_empty() {
            if text.ended {
                return false;
            }
            text.asleep = true;
            text = self.wake.wait(text).unwrap_or_else(PoisonError::into_inner);
        }
        text.asleep = false;
        std::mem::swap(batch, &mut text.waiting);
        true
    }

    fn lose(&self, records: u64) {
        self.text().dropped += records;
        DROPPED.fetch_add(records, Ordering::Relaxed);
    }

    fn rest(&self) {
        // Until the end at most: it is the only one to wake a thread that is not asleep.
        drop(self.wake.wait_timeout_while(self.text(), PAUSE, |text| !text.ended));
    }
}

impl LogLines {
    /// Lines go to `out` from now on, which must not buffer.
    /// `complain` is called with how many records were lost so far, and with the last error, whenever that number has grown,
    /// not more often than every [`COMPLAIN_AFTER`].
    pub(super) fn start(
        out: impl Write + Send + 'static,
        complain: impl Fn(u64, Option<&io::Error>) + Send + 'static,
    ) -> (Self, Writing) {
        let lines = Self(Arc::default());
        let shared = Arc::clone(&lines.0);
        let (last, finished) = mpsc::channel::<()>();
        thread::spawn(move || {
            let mut out = WholeLines { out, torn: false };
            let (mut batch, mut failure) = (Vec::new(), None);
            let (mut complained, mut at) = (0, None::<Instant>);
            while shared.next(&mut batch) {
                if let Err((error, lost)) = out.write(&batch)
                    && error.kind() != io::ErrorKind::BrokenPipe
                {
                    shared.lose(lost);
                    failure = Some(error);
                }
                batch.clear();
                batch.shrink_to(KEPT);
                let dropped = shared.text().dropped;
                if dropped > complained && at.is_none_or(|at| at.elapsed() >= COMPLAIN_AFTER) {
                    (complained, at) = (dropped, Some(Instant::now()));
                    complain(dropped, failure.take().as_ref());
                }
                shared.rest();
            }
            drop(last);
        });
        let writing = Writing { lines: lines.clone(), finished };
        (lines, writing)
    }

    /// Appends whole lines, unless too much waits already.
    pub(super) fn append(&self, lines: &[u8]) {
        let mut text = self.0.text();
        if text.waiting.len() + lines.len() > CAPACITY {
            drop(text);
            return self.0.lose(1);
        }
        text.waiting.extend_from_slice(lines);
        if std::mem::take(&mut text.asleep) {
            drop(text);
            self.0.wake.notify_one();
        }
    }
}

/// Writes whole lines, and keeps a line that an error tore apart from the next one.
struct WholeLines<W> {
    out: W,
    /// The last line that was written has no end.
    torn: bool,
}

impl<W: Write> WholeLines<W> {
    /// Writes all of `lines`. If that fails: why, and how many of them are not, or not wholly, written.
    fn write(&mut self, lines: &[u8]) -> Result<(), (io::Error, u64)> {
        if self.torn {
            self.write_some(b"\n").map_err(|(error, _)| (error, count(lines)))?;
        }
        self.write_some(lines).map_err(|(error, rest)| (error, count(rest)))
    }

    /// If it fails: why, and what is not written.
    fn write_some<'a>(&mut self, bytes: &'a [u8]) -> Result<(), (io::Error, &'a [u8])> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(0) => return Err((io::ErrorKind::WriteZero.into(), rest)),
                Ok(written) => {
                    self.torn = rest[written - 1] != b'\n';
                    rest = &rest[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((error, rest)),
            }
        }
        Ok(())
    }
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// For layers that write their records themselves, each in one piece.
impl Write for LogLines {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.append(record);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread that writes.
pub(super) struct Writing {
    lines: LogLines,
    /// Closed when the last line is written.
    finished: mpsc::Receiver<()>,
}

impl Writing {
    /// Waits until everything is written, if somebody reads it; returns how many records were lost.
    pub(super) fn end(&self) -> u64 {
        self.lines.0.text().ended = true;
        self.lines.0.wake.notify_one();
        let _ = self.finished.recv_timeout(LAST);
        let text = self.lines.0.text();
        text.dropped + count(&text.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, SyncSender};

    /// Long enough for any machine; only a failing test waits for it.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Passes on every write unchanged.
    struct Tap(Sender<Vec<u8>>);

    impl Write for Tap {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn tapped() -> (LogLines, Writing, Receiver<Vec<u8>>) {
        let (tap, writes) = mpsc::channel();
        let (lines, writing) = LogLines::start(Tap(tap), |_, _| {});
        (lines, writing, writes)
    }

    /// A reader that reads when it is told to.
    struct Slow(Receiver<()>, SyncSender<usize>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.send(bytes.len()).map_err(io::Error::other)?;
            self.0.recv().map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_record_does_not_wait_for_the_next() {
        let (lines, _writing, writes) = tapped();
        for record in [b"first\n", b"other\n"] {
            lines.append(record);
            assert_eq!(writes.recv_timeout(PATIENCE).unwrap(), record);
        }
    }

    #[test]
    fn what_gathers_while_one_is_written_goes_together_and_in_order() {
        let (read, reading) = mpsc::channel();
        let (began, writes) = mpsc::sync_channel(0);
        let (lines, writing) = LogLines::start(Slow(reading, began), |_, _| {});
        lines.append(b"one\n");
        assert_eq!(writes.recv_timeout(PATIENCE).unwrap(), 4);
        for record in ["two\n", "three\n", "four\n"] {
            lines.append(record.as_bytes());
        }
        read.send(()).unwrap();
        assert_eq!(writes.recv_timeout(PATIENCE).unwrap(), "two\nthree\nfour\n".len());
        read.send(()).unwrap();
        assert_eq!(writing.end(), 0);
    }

    #[test]
    fn the_end_writes_what_is_left_even_if_it_came_in_a_pause() {
        let (lines, writing, writes) = tapped();
        lines.append(b"first\n");
        writes.recv_timeout(PATIENCE).unwrap();
        lines.append(b"last\n");
        assert_eq!(writing.end(), 0);
        assert_eq!(writes.try_recv().unwrap(), b"last\n");
    }

    #[test]
    fn a_reader_that_stopped_costs_bounded_memory_and_time_and_is_told_of() {
        let (_read, reading) = mpsc::channel();
        let (began, writes) = mpsc::sync_channel(0);
        let (lines, writing) = LogLines::start(Slow(reading, began), |_, _| {});
        lines.append(b"first\n");
        writes.recv_timeout(PATIENCE).unwrap();
        let mut record = vec![b'x'; 1 << 20];
        record[(1 << 20) - 1] = b'\n';
        for _ in 0..40 {
            lines.append(&record);
        }
        assert_eq!(lines.0.text().waiting.len(), CAPACITY);
        assert_eq!(lines.0.text().dropped, 32);
        assert_eq!(writing.end(), 40, "none of them was written");
    }

    #[test]
    fn lost_records_are_complained_about_while_the_program_runs() {
        let (read, reading) = mpsc::channel();
        let (began, writes) = mpsc::sync_channel(0);
        let (complain, complaints) = mpsc::channel();
        let complain = move |dropped, _: Option<&io::Error>| complain.send(dropped).unwrap();
        let (lines, writing) = LogLines::start(Slow(reading, began), complain);
        lines.append(b"first\n");
        writes.recv_timeout(PATIENCE).unwrap();
        for _ in 0..3 {
            lines.append(&vec![b'\n'; CAPACITY / 2]);
        }
        read.send(()).unwrap();
        assert_eq!(complaints.recv_timeout(PATIENCE).unwrap(), 1);
        assert!(dropped_records() >= 1);
        writes.recv_timeout(PATIENCE).unwrap();
        read.send(()).unwrap();
        assert_eq!(writing.end(), 1);
    }

    /// Stdout whose reader has gone.
    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn a_broken_pipe_is_no_failure() {
        let (lines, writing) = LogLines::start(Gone, |_, _| {});
        for _ in 0..3 {
            lines.append(b"lost\n");
            thread::sleep(PAUSE);
        }
        assert_eq!(writing.end(), 0);
        assert!(lines.0.text().waiting.is_empty(), "nothing gathers for nobody");
    }
    /// A file on a disk with room for so many bytes, until that is changed.
    #[derive(Clone)]
    struct FullDisk(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for FullDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock().unwrap();
            let written = bytes.len().min(disk.0);
            if written == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.0 -= written;
            disk.1.extend_from_slice(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_full_disk_costs_is_counted_and_tears_no_other_line() {
        let disk = FullDisk(Arc::new(Mutex::new((8, Vec::new()))));
        let (complain, complaints) = mpsc::channel();
        let (lines, writing) = LogLines::start(disk.clone(), move |dropped, error| {
            complain.send((dropped, error.map(io::Error::kind))).unwrap();
        });
        lines.append(b"one\ntwo, torn\nthree\n");
        let complaint = complaints.recv_timeout(PATIENCE).unwrap();
        assert_eq!(complaint, (2, Some(io::ErrorKind::StorageFull)));
        lines.append(b"four\n");
        while disk.0.lock().unwrap().0 == 0 && writing.lines.0.text().dropped < 3 {
            thread::sleep(PAUSE);
        }
        disk.0.lock().unwrap().0 = 100;
        lines.append(b"five\n");
        assert_eq!(writing.end(), 3);
        assert_eq!(disk.0.lock().unwrap().1, b"one\ntwo,\nfive\n");
    }
}
