//! What a page of a list reads next when it uses the [coarse index](crate::ListIndexStore): first the rows that are
//! newer than the index, then the rows of each block that may hold some. Every back end reads in this order; only the
//! statements are its own.

use crate::{BLOCK, BLOCKS_AT_ONCE, PageRequest, QUERY_LIMIT, StoreError, StoreResult, list_index::ranges};
use std::{ops::Range, time::Instant, vec::IntoIter};

/// Ranges of ids that one statement reads, at most.
pub const RANGES_AT_ONCE: usize = 16;

/// The state of reading one page. [`step`](Self::step) says what to read; what was found is handed back.
#[derive(Debug)]
pub struct BlockPager {
    begun: Instant,
    limit: usize,
    /// Rows that are still missing: one more than asked for says that there is another page.
    missing: usize,
    /// Ids that are read without the index.
    spans: IntoIter<Range<i64>>,
    /// Ids from here on are not in the index.
    below: i64,
    /// Rows of blocks that were found.
    ranges: IntoIter<Range<i64>>,
    /// Blocks from here on have been found; `None` when there are no more.
    before_block: Option<i64>,
    /// Ranges of a step, at most.
    most_at_once: usize,
    /// Ranges of the last step, and of those before it, with the rows that were found in them.
    last_step: usize,
    read: (usize, usize),
}

/// What to read next, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PagerStep {
    /// At most this many rows with these ids, which are not of blocks that were found.
    Span(Range<i64>, usize),
    /// At most this many rows with ids in each of these ranges, which are of blocks that were found.
    Rows(Vec<Range<i64>>, usize),
    /// At most [`BLOCKS_AT_ONCE`] blocks before this one.
    Blocks(i64),
}

impl BlockPager {
    /// `indexed`: ids below it are in the index.
    pub fn new(indexed: i64, request: PageRequest) -> Self {
        let top = request.top();
        let below = top.min(indexed);
        let newest = (top > indexed).then_some(indexed..top);
        Self {
            below,
            before_block: Some(below.saturating_add(BLOCK - 1) / BLOCK),
            ..Self::of_spans(newest.into_iter().collect(), request)
        }
    }

    /// For a filter with an index of its own, and times: it reads no blocks, but the ids of those that can hold something of
    /// the times. `ends`: the first and the last of these blocks.
    pub fn between(indexed: i64, ends: (Option<i64>, Option<i64>), request: PageRequest) -> Self {
        let spans = ranges_between(request.top(), indexed, ends);
        Self::of_spans(spans.into_iter().filter(|ids| !ids.is_empty()).collect(), request)
    }

    fn of_spans(spans: Vec<Range<i64>>, request: PageRequest) -> Self {
        let limit = request.limit as usize;
        Self {
            begun: Instant::now(),
            limit,
            missing: limit + 1,
            spans: spans.into_iter(),
            below: 0,
            ranges: Vec::new().into_iter(),
            before_block: None,
            most_at_once: 1,
            last_step: 0,
            read: (0, 0),
        }
    }

    /// For a server: where blocks hold few rows each, several are read by one statement.
    #[must_use]
    pub fn several_at_once(self) -> Self {
        Self { most_at_once: RANGES_AT_ONCE, ..self }
    }

    /// How many ranges are likely to fill the page, and at most four times as many as last time.
    fn ranges_of_step(&self) -> usize {
        let (ranges, rows) = self.read;
        let enough = (self.missing * ranges).checked_div(rows).unwrap_or(RANGES_AT_ONCE);
        let more = if ranges == 0 { 1 } else { self.last_step * 4 };
        (enough + 1).min(more).min(self.most_at_once)
    }

    /// Rows of a full page.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// What to read next; `None` once the page is full or there is nothing more.
    ///
    /// # Errors
    /// [`StoreError::TooSlow`] after [`QUERY_LIMIT`].
    pub fn step(&mut self) -> StoreResult<Option<PagerStep>> {
        if self.missing == 0 {
            return Ok(None);
        }
        if self.begun.elapsed() > QUERY_LIMIT {
            return Err(StoreError::TooSlow("too many blocks".to_owned()));
        }
        if let Some(ids) = self.spans.next() {
            return Ok(Some(PagerStep::Span(ids, self.missing)));
        }
        let at_once = self.ranges_of_step();
        let ids: Vec<_> = self.ranges.by_ref().take(at_once).collect();
        if !ids.is_empty() {
            self.last_step = ids.len();
            self.read.0 += ids.len();
            return Ok(Some(PagerStep::Rows(ids, self.missing)));
        }
        Ok(self.before_block.filter(|&block| block > 0).map(PagerStep::Blocks))
    }

    /// Notes that this many rows were found.
    pub fn found_rows(&mut self, rows: usize) {
        self.missing = self.missing.saturating_sub(rows);
        if self.read.0 > 0 {
            self.read.1 += rows;
        }
    }

    /// These blocks were found, newest first.
    pub fn found_blocks(&mut self, blocks: &[i64]) {
        self.ranges = ranges(blocks, self.below).into_iter();
        let full = blocks.len() >= BLOCKS_AT_ONCE as usize;
        self.before_block = blocks.last().copied().filter(|_| full);
    }
}

/// Ids below `top` that rows of some times can have, newest first: those that are not indexed (`below` and more), and those
/// of the blocks from the first to the last that holds something of the times.
fn ranges_between(top: i64, below: i64, ends: (Option<i64>, Option<i64>)) -> [Range<i64>; 2] {
    let between = match ends {
        (Some(first), Some(last)) => first * BLOCK..((last + 1) * BLOCK).min(below).min(top),
        _ => 0..0,
    };
    [below..top, between]
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: i64 = BLOCKS_AT_ONCE as i64;

    fn request(limit: u32, before: Option<i64>) -> PageRequest {
        PageRequest { limit, before }
    }

    /// The rows of one range.
    fn rows(range: Range<i64>, missing: usize) -> PagerStep {
        PagerStep::Rows(std::iter::once(range).collect(), missing)
    }

    #[test]
    fn the_newest_rows_come_first_and_then_blocks_until_the_page_is_full() {
        let mut pager = BlockPager::new(1000, request(9, None));
        assert_eq!(pager.step().unwrap(), Some(PagerStep::Span(1000..i64::MAX, 10)));
        pager.found_rows(4);
        assert_eq!(pager.step().unwrap(), Some(PagerStep::Blocks(4)), "the block of id 999 is the third");
        pager.found_blocks(&[3, 2, 0]);
        assert_eq!(pager.step().unwrap(), Some(rows(512..1000, 6)), "never beyond the index");
        pager.found_rows(5);
        assert_eq!(pager.step().unwrap(), Some(rows(0..256, 1)));
        pager.found_rows(1);
        assert_eq!(pager.step().unwrap(), None);
    }

    #[test]
    fn a_page_below_the_index_reads_no_newest_rows_and_ends_where_the_blocks_do() {
        let mut pager = BlockPager::new(100_000, request(1, Some(50_000)));
        assert_eq!(pager.step().unwrap(), Some(PagerStep::Blocks(196)));
        let many: Vec<i64> = (0..FULL).map(|n| 195 - 2 * n).collect();
        pager.found_blocks(&many);
        for _ in 0..FULL {
            assert!(
                matches!(pager.step().unwrap(), Some(PagerStep::Rows(ids, 2)) if ids[0].end <= 50_000 && ids.len() == 1)
            );
            pager.found_rows(0);
        }
        assert_eq!(
            pager.step().unwrap(),
            Some(PagerStep::Blocks(195 - 2 * (FULL - 1))),
            "they were as many as fit"
        );
        pager.found_blocks(&[]);
        assert_eq!(pager.step().unwrap(), None);
    }

    #[test]
    fn as_many_ranges_are_read_at_once_as_are_likely_to_fill_the_page() {
        let many: Vec<i64> = (0..FULL).map(|n| 195 - 2 * n).collect();
        let steps = |rows_of_range: usize| {
            let mut pager = BlockPager::new(100_000, request(50, None)).several_at_once();
            pager.step().unwrap();
            pager.found_rows(0);
            pager.step().unwrap();
            pager.found_blocks(&many);
            let mut steps = Vec::new();
            while let Some(PagerStep::Rows(ids, _)) = pager.step().unwrap() {
                pager.found_rows(ids.len() * rows_of_range);
                steps.push(ids.len());
            }
            steps
        };
        assert_eq!(steps(1), [1, 4, 16, 16, 15]);
        assert_eq!(steps(20), [1, 2]);
        assert_eq!(steps(60), [1]);
        assert_eq!(steps(0), [1, 4, 16, 16, 16, 11], "there are no more");
    }

    #[test]
    fn ids_of_times_are_the_unindexed_ones_and_those_from_the_first_block_to_the_last() {
        let below = 10 * BLOCK;
        assert_eq!(
            ranges_between(i64::MAX, below, (Some(2), Some(4))),
            [below..i64::MAX, 2 * BLOCK..5 * BLOCK]
        );
        assert_eq!(
            ranges_between(i64::MAX, below - 1, (Some(2), Some(9)))[1],
            2 * BLOCK..below - 1,
            "never beyond the index"
        );
        assert_eq!(ranges_between(3 * BLOCK, below, (Some(2), Some(4)))[1], 2 * BLOCK..3 * BLOCK);
        for ends in [(None, Some(4)), (Some(2), None)] {
            assert!(ranges_between(i64::MAX, below, ends)[1].is_empty());
        }
    }

    #[test]
    fn between_times_no_block_is_read() {
        let mut pager = BlockPager::between(1000, (Some(1), Some(2)), request(9, None));
        assert_eq!(pager.step().unwrap(), Some(PagerStep::Span(1000..i64::MAX, 10)));
        pager.found_rows(3);
        assert_eq!(pager.step().unwrap(), Some(PagerStep::Span(256..768, 7)));
        assert_eq!(pager.step().unwrap(), None);
        let mut pager = BlockPager::between(1000, (None, None), request(9, Some(1000)));
        assert_eq!(pager.step().unwrap(), None, "nothing is of these times");
    }
}
