//! Gathers log records, so that one system call writes many of them.
//!
//! The appender's thread writes what is in its queue and flushes whenever the queue is empty. A record that
//! comes alone is therefore written at once; those that follow within [`PAUSE`] are written together.

use std::{
    io::{self, BufWriter, Write},
    thread,
    time::Duration,
};

/// What is written in one go at most; a record that is longer goes alone.
const CAPACITY: usize = 64 * 1024;

/// How long the thread rests after it has written. Without it, the thread wakes up for every single record,
/// and every thread that logs pays for waking it. It bounds how late a record is, and how much of the log is
/// lost if the process is killed.
const PAUSE: Duration = Duration::from_millis(5);

/// A buffered writer for the appender's thread, and for no other: its flush rests for [`PAUSE`].
pub(super) struct Batch<W: Write>(BufWriter<W>);

impl<W: Write> Batch<W> {
    pub(super) fn new(out: W) -> Self {
        Self(BufWriter::with_capacity(CAPACITY, out))
    }
}

impl<W: Write> Write for Batch<W> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.0.write(record)
    }

    /// Never fails: nobody is there to hear that stdout is gone, and after a failed flush the appender would
    /// miss that the program ends and keep it waiting. What could not be written stays for the next time.
    fn flush(&mut self) -> io::Result<()> {
        let waiting = !self.0.buffer().is_empty();
        let _ = self.0.flush();
        if waiting {
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver, Sender};

    /// Long enough for any machine; only a failing test waits for it.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Passes on every write as it came.
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

    fn tapped() -> (Batch<Tap>, Receiver<Vec<u8>>) {
        let (tap, writes) = mpsc::channel();
        (Batch::new(Tap(tap)), writes)
    }

    #[test]
    fn one_write_carries_many_records() {
        let (mut batch, writes) = tapped();
        for record in [b"one\n", b"two\n", b"six\n"] {
            batch.write_all(record).unwrap();
        }
        assert!(writes.try_recv().is_err(), "nothing is written before the flush");
        batch.flush().unwrap();
        assert_eq!(writes.try_recv().unwrap(), b"one\ntwo\nsix\n");
        batch.flush().unwrap();
        assert!(writes.try_recv().is_err(), "nothing is written twice");
    }

    #[test]
    fn a_full_batch_ends_with_a_whole_record() {
        let (mut batch, writes) = tapped();
        let mut record = [b'x'; 1000];
        record[999] = b'\n';
        for _ in 0..=CAPACITY / record.len() {
            batch.write_all(&record).unwrap();
        }
        assert_eq!(writes.try_recv().unwrap().len(), CAPACITY / record.len() * record.len());
        batch.flush().unwrap();
        assert_eq!(writes.try_recv().unwrap(), record);
    }

    #[test]
    fn a_record_does_not_wait_for_the_next() {
        let (batch, writes) = tapped();
        let (mut appender, _guard) = tracing_appender::non_blocking(batch);
        for record in [b"first\n", b"other\n"] {
            appender.write_all(record).unwrap();
            assert_eq!(writes.recv_timeout(PATIENCE).unwrap(), record);
        }
    }

    #[test]
    fn the_end_writes_what_is_left_even_if_it_came_in_a_pause() {
        let (batch, writes) = tapped();
        let (mut appender, guard) = tracing_appender::non_blocking(batch);
        appender.write_all(b"first\n").unwrap();
        writes.recv_timeout(PATIENCE).unwrap();
        appender.write_all(b"last\n").unwrap();
        drop(guard);
        assert_eq!(writes.try_recv().unwrap(), b"last\n");
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
    fn a_broken_pipe_is_no_failure_and_takes_no_memory() {
        let mut batch = Batch::new(Gone);
        batch.write_all(b"lost\n").unwrap();
        batch.flush().unwrap();
        for _ in 0..CAPACITY {
            let _ = batch.write_all(b"lost\n");
        }
        assert!(batch.0.buffer().len() <= CAPACITY);
        batch.flush().unwrap();
    }
}
