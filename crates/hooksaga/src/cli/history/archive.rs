//! Reads an archive of history: one JSON object per line, in zstd frames one after the other.
//!
//! A file is read as a stream, a line at a time. A frame that breaks off (whoever wrote it was killed) or is damaged
//! costs its own lines and no others: reading goes on with the next frame.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom},
    path::Path,
};

/// A line that is longer is left out: an event of 1 MiB with 10,000 deliveries has a fifth of that.
const LONGEST_LINE: usize = 256 << 20;

/// What every zstd frame begins with.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

const BUFFER: usize = 128 << 10;

/// Writers make a frame of every batch, which is smaller.
const WHOLE: u64 = 16 << 20;

/// How many unreadable parts of a file are reported one by one; the rest are counted.
const TOLD_GAPS: usize = 100;

/// A part of a file that cannot be read, described for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// A frame breaks off after this line: its writer was killed, and what it held is still in the database; or the file is
    /// a copy that is not whole.
    Torn { after_line: u64 },
    /// A frame cannot be read from this line on, or a line is too long.
    Damaged { after_line: u64, why: String },
}

/// What became of one file.
#[derive(Debug, Default)]
pub(super) struct FileReading {
    pub(super) lines: u64,
    /// The first ones, at most [`TOLD_GAPS`].
    pub(super) gaps: Vec<Unreadable>,
    /// How many there are besides.
    pub(super) more_gaps: u64,
    /// Whether one of all the gaps is damage.
    pub(super) damaged: bool,
    /// Nobody wants to hear more.
    pub(super) stopped: bool,
}

impl FileReading {
    fn gap(&mut self, gap: Unreadable) {
        self.damaged |= matches!(gap, Unreadable::Damaged { .. });
        if self.gaps.len() < TOLD_GAPS {
            self.gaps.push(gap);
        } else {
            self.more_gaps += 1;
        }
    }
}

/// Calls `each` with the number of every line, from 1, and its text, until it returns false.
pub(super) fn read(path: &Path, mut each: impl FnMut(u64, &str) -> bool) -> io::Result<FileReading> {
    let mut file = BufReader::with_capacity(BUFFER, File::open(path)?);
    let mut lines = LineSplitter {
        partial: Vec::new(),
        skipping: false,
        reading: FileReading::default(),
        each: &mut each,
    };
    let is_compressed = file.fill_buf()?.starts_with(&MAGIC);
    if !is_compressed {
        // Somebody has unpacked it.
        lines.take_all(&mut file)?;
        lines.end();
        return Ok(lines.reading);
    }
    let mut start = 0;
    while !lines.reading.stopped && next_frame(&mut file, start)? {
        start = file.stream_position()?;
        start = read_frame(&mut file, start, &mut lines)?;
    }
    lines.end();
    Ok(lines.reading)
}

/// Reads the frame at `start`; where the next one may begin.
///
/// A decoder would read the bytes after a torn frame as its continuation, and produce lines that nobody wrote; the
/// output of a damaged frame cannot be trusted either. So lines are returned only after the frame's checksum was
/// verified. If it fails, the frame is read again up to the start of the next one: a torn frame then yields the lines
/// that it has, a damaged one none. A frame that is larger than [`WHOLE`] is read twice instead of held.
fn read_frame<F: FnMut(u64, &str) -> bool>(
    file: &mut BufReader<File>,
    start: u64,
    lines: &mut LineSplitter<'_, F>,
) -> io::Result<u64> {
    let mut frame = zstd::stream::read::Decoder::with_buffer(&mut *file)?.single_frame();
    let mut text = Vec::new();
    let whole = match (&mut frame).take(WHOLE).read_to_end(&mut text) {
        Ok(length) if (length as u64) < WHOLE => {
            drop(frame);
            lines.take_all(&mut text.as_slice())?;
            return file.stream_position();
        }
        Ok(_) => io::copy(&mut frame, &mut io::sink()),
        Err(error) => Err(error),
    };
    drop((frame, text));
    if whole.is_ok() {
        let next = file.stream_position()?;
        lines.take_all(&mut part(file, start, next)?)?;
        file.seek(SeekFrom::Start(next))?;
        return Ok(next);
    }
    let next =
        if next_frame(file, start + 1)? { file.stream_position()? } else { file.seek(SeekFrom::End(0))? };
    let error = match io::copy(&mut part(file, start, next)?, &mut io::sink()) {
        Ok(_) => io::Error::other("its end cannot be found"),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::UnexpectedEof {
        // It ends as it did a moment ago.
        let _ = lines.take_all(&mut part(file, start, next)?);
    }
    lines.broken(&error);
    Ok(next)
}

/// The frame in this part of the file.
fn part(file: &mut BufReader<File>, start: u64, end: u64) -> io::Result<impl Read> {
    file.seek(SeekFrom::Start(start))?;
    Ok(zstd::stream::read::Decoder::with_buffer(file.take(end - start))?.single_frame())
}

/// Moves to the first frame at `from` or after it; whether there is one.
fn next_frame(file: &mut BufReader<File>, from: u64) -> io::Result<bool> {
    file.seek(SeekFrom::Start(from))?;
    let mut at = from;
    let mut last = [0_u8; 4];
    loop {
        let chunk = file.fill_buf()?;
        if chunk.is_empty() {
            return Ok(false);
        }
        for (index, byte) in chunk.iter().enumerate() {
            last.rotate_left(1);
            last[3] = *byte;
            let end = at + index as u64 + 1;
            if last == MAGIC && end >= from + 4 {
                file.seek(SeekFrom::Start(end - 4))?;
                return Ok(true);
            }
        }
        let length = chunk.len();
        at += length as u64;
        file.consume(length);
    }
}

/// Cuts what is read into lines.
struct LineSplitter<'a, F> {
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    /// The rest of a line that is too long.
    skipping: bool,
    reading: FileReading,
    each: &'a mut F,
}

impl<F: FnMut(u64, &str) -> bool> LineSplitter<'_, F> {
    fn take_all(&mut self, from: &mut impl Read) -> io::Result<()> {
        let mut chunk = vec![0; BUFFER];
        while !self.reading.stopped {
            let length = match from.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for piece in chunk[..length].split_inclusive(|byte| *byte == b'\n') {
                self.take(piece);
            }
        }
        Ok(())
    }

    fn take(&mut self, piece: &[u8]) {
        if self.reading.stopped {
            return;
        }
        let (text, ends) = match piece.split_last() {
            Some((b'\n', text)) => (text, true),
            _ => (piece, false),
        };
        if self.partial.len() + text.len() > LONGEST_LINE {
            self.skipping = true;
        }
        if self.skipping {
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(text);
        }
        if ends {
            self.line();
        }
    }

    fn line(&mut self) {
        let after_line = self.reading.lines;
        let line = std::mem::take(&mut self.partial);
        if std::mem::take(&mut self.skipping) {
            let why = format!("a line is longer than {} MiB", LONGEST_LINE >> 20);
            self.reading.gap(Unreadable::Damaged { after_line, why });
            return;
        }
        self.reading.lines += 1;
        match std::str::from_utf8(&line) {
            Ok("") => self.reading.lines -= 1,
            Ok(text) => self.reading.stopped = !(self.each)(self.reading.lines, text),
            Err(_) => {
                self.reading.gap(Unreadable::Damaged { after_line, why: "a line is not UTF-8".to_owned() });
            }
        }
        // The memory of an ordinary line is used again, that of a huge one is not.
        if line.capacity() <= BUFFER {
            self.partial = line;
            self.partial.clear();
        }
    }

    /// The frame gives no more.
    fn broken(&mut self, error: &io::Error) {
        self.partial.clear();
        self.skipping = false;
        let after_line = self.reading.lines;
        self.reading.gap(match error.kind() {
            ErrorKind::UnexpectedEof => Unreadable::Torn { after_line },
            _ => Unreadable::Damaged { after_line, why: error.to_string() },
        });
    }

    /// The file ends. A line without its end was being written.
    fn end(&mut self) {
        if !self.reading.stopped && (!self.partial.is_empty() || self.skipping) {
            self.reading.gap(Unreadable::Torn { after_line: self.reading.lines });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_pipeline::random_hex;
    use std::{fs, path::PathBuf};

    struct TempFile(PathBuf);

    impl TempFile {
        fn with(bytes: &[u8]) -> Self {
            let path = std::env::temp_dir().join(format!("hooksaga-archive-{}", random_hex(8)));
            fs::write(&path, bytes).expect("writes");
            Self(path)
        }

        fn lines(&self) -> (Vec<String>, Vec<Unreadable>) {
            let mut lines = Vec::new();
            let reading = read(&self.0, |number, line| {
                lines.push(format!("{number} {line}"));
                true
            });
            (lines, reading.expect("can be opened").gaps)
        }
    }

    impl Drop for TempFile {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn frame(text: &str) -> Vec<u8> {
        zstd::encode_all(text.as_bytes(), 1).expect("compresses")
    }

    #[test]
    fn frames_follow_one_another_and_a_line_may_go_over_two() {
        let file = TempFile::with(&[frame("a\nb\nc"), frame("d\n"), frame(""), frame("e\n")].concat());
        assert_eq!(file.lines(), (["1 a", "2 b", "3 cd", "4 e"].map(str::to_owned).to_vec(), vec![]));
        assert_eq!(TempFile::with(b"").lines(), (vec![], vec![]));
        assert_eq!(TempFile::with(b"x\ny\n").lines().0, ["1 x", "2 y"], "unpacked");
    }

    #[test]
    fn a_torn_frame_at_the_end_costs_only_what_it_lacks() {
        let whole = frame("a\nb\n");
        let last = frame("c\nd\n");
        for cut in 1..last.len() {
            let file = TempFile::with(&[&whole, &last[..cut]].concat());
            let (lines, gaps) = file.lines();
            assert_eq!(lines[..2], ["1 a", "2 b"], "cut at {cut}");
            assert!(
                cut < 5 || gaps.len() == 1 && matches!(gaps[0], Unreadable::Torn { .. }),
                "cut at {cut}: {gaps:?}"
            );
        }
    }

    #[test]
    fn what_was_written_after_a_crash_is_found_wherever_the_frame_was_torn() {
        // Text that does not compress, so that what follows could be taken for the rest of a block.
        let noise: String = (0..40).map(|_| format!("lost {}\n", random_hex(16))).collect();
        let torn = frame(&noise);
        let (before, after) = (frame("a\n"), frame(&format!("b\n{noise}c\n")));
        for cut in (5..torn.len()).step_by(7) {
            let file = TempFile::with(&[&before, &torn[..cut], &after].concat());
            let (lines, gaps) = file.lines();
            assert_eq!(lines[0], "1 a");
            let rest: Vec<&str> =
                lines[1..].iter().filter_map(|line| line.split_once(' ')).map(|(_, text)| text).collect();
            let whole = |text: &&str| ["b", "c"].contains(text) || noise.lines().any(|line| line == *text);
            assert!(rest.iter().all(whole), "cut at {cut}: {rest:?}");
            assert!(rest.ends_with(&["c"]) && rest.contains(&"b"), "cut at {cut}: {rest:?}");
            assert!(gaps.len() == 1 && matches!(gaps[0], Unreadable::Torn { .. }), "cut at {cut}: {gaps:?}");
        }
    }

    #[test]
    fn damage_is_told_from_a_torn_frame() {
        let mut damaged = frame(&"some text\n".repeat(100));
        // The header of its first block, after the magic, the descriptor and the window: a kind that does not exist.
        damaged[6] |= 0b110;
        let file = TempFile::with(&[damaged, frame("b\n")].concat());
        let (lines, gaps) = file.lines();
        assert_eq!(lines, ["1 b"], "nothing of a frame that is damaged");
        assert!(gaps.iter().any(|gap| matches!(gap, Unreadable::Damaged { .. })), "{gaps:?}");
    }

    #[test]
    fn the_first_gaps_are_kept_and_the_rest_are_counted() {
        let mut bytes = b"\xff\n".repeat(TOLD_GAPS + 7);
        bytes.extend_from_slice(b"x\n");
        let file = TempFile::with(&bytes);
        let reading = read(&file.0, |_, _| true).expect("can be opened");
        assert_eq!((reading.gaps.len(), reading.more_gaps, reading.damaged), (TOLD_GAPS, 7, true));
        let torn = read(&TempFile::with(b"x\ny").0, |_, _| true).expect("can be opened");
        assert_eq!((torn.gaps.len(), torn.more_gaps, torn.damaged), (1, 0, false));
    }

    #[test]
    fn a_checksum_finds_what_still_decompresses() {
        let mut compressor = zstd::bulk::Compressor::new(1).expect("a compressor");
        compressor.include_checksum(true).expect("understood");
        let mut damaged = compressor.compress(b"one line\n").expect("compresses");
        // Short text is stored as it is; behind it stand the four bytes of the checksum.
        let at = damaged.len() - 4 - 3;
        damaged[at] ^= 1;
        let file = TempFile::with(&[damaged, frame("b\n")].concat());
        let (lines, gaps) = file.lines();
        assert_eq!(lines, ["1 b"], "a line that was not written is not shown");
        assert!(gaps.len() == 1 && matches!(gaps[0], Unreadable::Damaged { .. }), "{gaps:?}");
    }

    #[test]
    fn a_frame_that_is_too_large_to_be_held_is_not_shown_before_it_is_checked() {
        let line = format!("{}\n", "x".repeat((1 << 20) - 1));
        let text = line.repeat(usize::try_from(WHOLE >> 20).expect("few") + 3);
        let mut compressor = zstd::bulk::Compressor::new(1).expect("a compressor");
        compressor.include_checksum(true).expect("understood");
        let mut large = compressor.compress(text.as_bytes()).expect("compresses");
        let many = text.len() / line.len();
        let count = |bytes: Vec<u8>| {
            let (lines, gaps) = TempFile::with(&bytes).lines();
            (lines.len(), gaps.len())
        };
        assert_eq!(count([large.clone(), frame("b\n")].concat()), (many + 1, 0));
        // Its checksum is that of another text.
        if let Some(last) = large.last_mut() {
            *last ^= 1;
        }
        assert_eq!(count([large, frame("b\n")].concat()), (1, 1));
    }

    #[test]
    fn a_reader_that_has_enough_is_left_alone() {
        let file = TempFile::with(&[frame("a\nb\n"), frame("c\n")].concat());
        let mut seen = 0;
        let reading = read(&file.0, |_, _| {
            seen += 1;
            false
        });
        assert!(reading.expect("can be opened").stopped);
        assert_eq!(seen, 1);
    }

    #[test]
    fn memory_stays_small_however_long_the_file() {
        let line = format!("{}\n", "x".repeat(1000));
        let many = TempFile::with(&vec![frame(&line.repeat(1000)); 50].concat());
        let mut largest = 0;
        let reading = read(&many.0, |_, line| {
            largest = largest.max(line.len());
            true
        });
        assert_eq!((reading.expect("can be opened").lines, largest), (50_000, 1000));
    }
}
