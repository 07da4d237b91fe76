//! What a page of a list reads next when it uses the [coarse index](crate::ListIndexStore): first the rows that are
//! newer than the index, then the rows of each block that may hold some. Every back end reads in this order; only the
//! statements are its own.

use crate::{BLOCK, BLOCKS_AT_ONCE, PageRequest, list_index::ranges};
use std::{ops::Range, vec::IntoIter};

/// The state of reading one page. [`step`](Self::step) says what to read; what was found is handed back.
#[derive(Debug)]
pub struct BlockPager {
    /// Rows that are still missing: one more than asked for says that there is another page.
    missing: usize,
    newest: Option<Range<i64>>,
    /// Ids from here on are not in the index.
    below: i64,
    /// Rows of blocks that were found.
    ranges: IntoIter<Range<i64>>,
    /// Blocks from here on have been found; `None` when there are no more.
    before_block: Option<i64>,
}

/// What to read next, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PagerStep {
    /// So many rows at most with these ids, which are not in the index.
    Newest(Range<i64>, usize),
    /// So many rows at most with these ids, which are of blocks that were found.
    Rows(Range<i64>, usize),
    /// At most [`BLOCKS_AT_ONCE`] blocks before this one.
    Blocks(i64),
}

impl BlockPager {
    /// `indexed`: ids below it are in the index.
    pub fn new(indexed: i64, request: PageRequest) -> Self {
        let top = request.top();
        let below = top.min(indexed);
        Self {
            missing: request.limit as usize + 1,
            newest: (top > indexed).then_some(indexed..top),
            below,
            ranges: Vec::new().into_iter(),
            before_block: Some(below.saturating_add(BLOCK - 1) / BLOCK),
        }
    }

    /// What to read next; nothing once the page is full or there is nothing more.
    pub fn step(&mut self) -> Option<PagerStep> {
        if self.missing == 0 {
            return None;
        }
        if let Some(ids) = self.newest.take() {
            return Some(PagerStep::Newest(ids, self.missing));
        }
        match self.ranges.next() {
            Some(ids) => Some(PagerStep::Rows(ids, self.missing)),
            None => self.before_block.filter(|&block| block > 0).map(PagerStep::Blocks),
        }
    }

    /// So many rows were found.
    pub fn found_rows(&mut self, rows: usize) {
        self.missing = self.missing.saturating_sub(rows);
    }

    /// These blocks were found, newest first.
    pub fn found_blocks(&mut self, blocks: &[i64]) {
        self.ranges = ranges(blocks, self.below).into_iter();
        let full = blocks.len() >= BLOCKS_AT_ONCE as usize;
        self.before_block = blocks.last().copied().filter(|_| full);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: i64 = BLOCKS_AT_ONCE as i64;

    fn request(limit: u32, before: Option<i64>) -> PageRequest {
        PageRequest { limit, before }
    }

    #[test]
    fn the_newest_rows_come_first_and_then_blocks_until_the_page_is_full() {
        let mut pager = BlockPager::new(1000, request(9, None));
        assert_eq!(pager.step(), Some(PagerStep::Newest(1000..i64::MAX, 10)));
        pager.found_rows(4);
        assert_eq!(pager.step(), Some(PagerStep::Blocks(4)), "the block of id 999 is the third");
        pager.found_blocks(&[3, 2, 0]);
        assert_eq!(pager.step(), Some(PagerStep::Rows(512..1000, 6)), "never beyond the index");
        pager.found_rows(5);
        assert_eq!(pager.step(), Some(PagerStep::Rows(0..256, 1)));
        pager.found_rows(1);
        assert_eq!(pager.step(), None);
    }

    #[test]
    fn a_page_below_the_index_reads_no_newest_rows_and_ends_where_the_blocks_do() {
        let mut pager = BlockPager::new(100_000, request(1, Some(50_000)));
        assert_eq!(pager.step(), Some(PagerStep::Blocks(196)));
        let many: Vec<i64> = (0..FULL).map(|n| 195 - 2 * n).collect();
        pager.found_blocks(&many);
        for _ in 0..FULL {
            assert!(matches!(pager.step(), Some(PagerStep::Rows(ids, 2)) if ids.end <= 50_000));
            pager.found_rows(0);
        }
        assert_eq!(pager.step(), Some(PagerStep::Blocks(195 - 2 * (FULL - 1))), "they were as many as fit");
        pager.found_blocks(&[]);
        assert_eq!(pager.step(), None);
    }
}
