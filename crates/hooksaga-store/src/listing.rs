//! Lists: what is asked of one, and the page that is returned.

use crate::TenantScope;

/// Which page of a list, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    pub limit: u32,
    /// Only rows with a smaller id.
    pub before: Option<i64>,
}

impl PageRequest {
    /// This page of a list.
    pub fn of<'a, F>(self, scope: &'a TenantScope, filter: &'a F) -> ListQuery<'a, F> {
        ListQuery { scope, filter, page: self }
    }

    /// All ids of the page are less than this.
    pub fn top(self) -> i64 {
        self.before.unwrap_or(i64::MAX)
    }
}

/// What is asked of a list: whose rows, which of them, and which page.
#[derive(Debug)]
pub struct ListQuery<'a, F> {
    pub scope: &'a TenantScope,
    pub filter: &'a F,
    pub page: PageRequest,
}

// Not derived: a filter need not be `Copy` for this, which only borrows it.
impl<F> Clone for ListQuery<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for ListQuery<'_, F> {}

/// A page, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// The `before` of the page that follows, if there is more.
    pub next: Option<i64>,
}

impl<T> Page<T> {
    /// The page of a list that nothing belongs to.
    pub fn empty() -> Self {
        Self { items: Vec::new(), next: None }
    }

    /// The page of a query that returned one row more than `limit` if there is more.
    pub fn cut(mut items: Vec<T>, limit: u32, id: impl Fn(&T) -> i64) -> Self {
        let more = items.len() > limit as usize;
        items.truncate(limit as usize);
        let next = items.last().filter(|_| more).map(id);
        Self { items, next }
    }
}
